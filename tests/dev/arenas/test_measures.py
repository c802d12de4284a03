"""The direct box and our own measure, with models of random weights: what holds for any weights."""

import json

import pytest
import torch
from arenas.measures import Reference, direct_box, models, own, own_measure, pixel_box
from arenas.measures.reference import crop, scaled_box

from . import tiny_models

BOX = (0.25, 0.25, 0.75, 0.75)  # in 64 x 48 pixels: 16, 12, 48, 36


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folders of a DINOv2, an OWL-ViT and a SAM2."""
    where = tmp_path_factory.mktemp("models")
    kinds = {"owl": tiny_models.owl, "sam": tiny_models.sam, "dino": tiny_models.dino}
    return {name: save(where / name) for name, save in kinds.items()}


@pytest.fixture
def picture():
    return noise(1)[0]


def noise(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(0, 256, (count, 48, 64, 3), generator=generator, dtype=torch.uint8)


def test_a_box_in_pixels_holds_every_pixel_that_it_touches():
    assert pixel_box((0.26, 0.5, 0.51, 0.6), 10, 10) == (2, 5, 6, 6)


def test_a_bound_on_a_pixel_stays_there_for_all_rounding():
    assert 0.29 * 100 == pytest.approx(29) and 0.29 * 100 != 29
    assert pixel_box((0.29, 0, 0.57, 1), 100, 8) == (29, 0, 57, 8)


def test_a_box_scales_with_the_picture_and_keeps_one_pixel():
    assert scaled_box((16, 12, 48, 36), (64, 48), (32, 96)) == (8, 24, 24, 72)
    assert scaled_box((63, 47, 64, 48), (64, 48), (8, 8)) == (7, 7, 8, 8)


def test_the_direct_box_finds_the_picture_that_holds_the_reference(folders, picture):
    frames = noise(9)
    frames[4, 12:36, 16:48] = picture[12:36, 16:48]
    seen = direct_box(frames, [Reference(picture, BOX, 7)], folders["dino"])
    assert seen["references"] == [
        {"frame": 7, "best_frame": 4, "best_score": pytest.approx(1, abs=1e-5)}
    ]
    assert seen["score"] == pytest.approx(1, abs=1e-5)


def test_the_direct_box_looks_at_every_fourth_picture(folders, picture):
    frames = noise(9)
    frames[5] = picture
    seen = direct_box(frames, [Reference(picture, BOX, 7)], folders["dino"])
    assert seen["score"] < 1 - 1e-4
    every = direct_box(frames, [Reference(picture, BOX, 7)], folders["dino"], stride=1)
    assert every["references"][0]["best_frame"] == 5


def test_a_number_is_the_mean_over_references(folders, picture):
    frames = noise(9)
    frames[0] = picture
    one, other = Reference(picture, BOX, 0), Reference(noise(2)[1], BOX, 5)
    both = direct_box(frames, [one, other], folders["dino"])
    best = [row["best_score"] for row in both["references"]]
    assert best[0] > best[1] and both["score"] == pytest.approx(sum(best) / 2)


def test_our_measure_is_one_for_what_it_finds_again_and_cuts_out_alike(folders, picture):
    detector = models.detector(folders["owl"], "cpu")
    box, *rest = own.found(picture, ["barn"], detector, threshold=0.0)
    left, top, right, bottom = box
    reference = Reference(picture, (left / 64, top / 48, right / 64, bottom / 48), 3)
    assert reference.pixels() == box
    seen = own_measure(picture[None], [reference], ["barn"], **folders, threshold=0.0)
    assert seen["found"] == 1 and seen["score"] == pytest.approx(1, abs=1e-4)


def test_our_measure_knows_an_object_that_moved(folders, picture, monkeypatch):
    frames = noise(5)
    frames[4, 0:24, 0:32] = crop(picture, (16, 12, 48, 36))
    where = [[], [(0, 0, 32, 24)]]
    monkeypatch.setattr(own, "found", lambda *args: where.pop(0))
    whole = torch.ones(24, 32, 1, dtype=torch.uint8)

    def cut(image, boxes, sam):
        return [torch.cat([crop(image, box), whole], -1) for box in boxes]

    monkeypatch.setattr(own, "cut_out", cut)
    seen = own_measure(frames, [Reference(picture, BOX, 3)], ["barn"], **folders)
    assert seen["found"] == 0.5 and seen["references"][0]["best_frame"] == 4
    assert seen["score"] == pytest.approx(1, abs=1e-5)
    assert direct_box(frames, [Reference(picture, BOX, 3)], folders["dino"])["score"] < 1 - 1e-4


def test_what_nobody_finds_is_forgotten(folders, picture):
    frames = picture.expand(5, -1, -1, -1)
    seen = own_measure(frames, [Reference(picture, BOX, 3)], ["barn"], **folders, threshold=1.0)
    assert seen == {
        "score": 0,
        "found": 0,
        "references": [{"frame": 3, "best_score": 0, "best_frame": None}],
    }


def test_a_scene_is_compared_as_a_whole(folders, picture):
    frames = noise(9)
    frames[8] = picture
    reference = Reference(picture, (0, 0, 1, 1), 3)
    seen = own_measure(frames, [reference], [], **folders, scene=True)
    assert seen["score"] == pytest.approx(1, abs=1e-5)
    assert seen["references"][0]["best_frame"] == 8


def test_outside_of_the_mask_is_the_mean_colour(folders):
    image = torch.full((2, 4, 4), 200, dtype=torch.uint8)
    image[..., 3] = torch.tensor([[1, 0, 0, 0], [0, 0, 0, 1]])
    square = own.squared(image, models.dino(folders["dino"], "cpu"))
    assert square.shape == (5, 5, 3)  # 4 * 8 / 7, rounded up
    assert (square == 200).all(-1).nonzero().tolist() == [[1, 0], [2, 3]]
    image[..., 3] = 0
    assert (own.squared(image, models.dino(folders["dino"], "cpu")) == 200).all(-1).sum() == 8


def test_a_label_longer_than_the_detector_reads_is_cut(folders, picture):
    detector = models.detector(folders["owl"], "cpu")
    assert own.found(picture, ["barn " * 40, "tree"], detector, threshold=0.0)


def test_a_folder_without_a_model_is_refused(tmp_path, picture):
    with pytest.raises(ValueError, match="has no config.json"):
        direct_box(noise(1), [Reference(picture, BOX, 0)], tmp_path)


def test_a_folder_with_another_model_is_refused(folders, picture):
    with pytest.raises(ValueError, match="The folder of DINOv2, .*owl, holds 'owlvit', not dinov2"):
        direct_box(noise(1), [Reference(picture, BOX, 0)], folders["owl"])


def test_a_transformers_without_sam2_is_refused(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "sam2_video"}))
    kinds = models.KINDS["SAM2"][0]
    monkeypatch.setitem(models.KINDS, "SAM2", (kinds, "ModelOfALaterVersion", "Sam2Processor"))
    with pytest.raises(ValueError, match="knows SAM2 from 4.56 on"):
        models.masks(tmp_path, "cpu")
