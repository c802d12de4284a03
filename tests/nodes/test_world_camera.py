"""The node World Camera: paths, keys and files become one control, a scale and a picture."""

import folder_paths
import numpy
import pytest
import torch
from keepsake.demo.world import STEP, camera, camera_control, keys_camera
from keepsake.nodes.world_camera import WorldCamera

LATENT = {"samples": torch.zeros(1, 16, 5, 8, 10)}
INPUTS = dict(
    path="keys",
    away_frames=2,
    keys="w-8,none-8",
    poses="none",
    move=0.05,
    turn=2.0,
    scale=0.0,
)


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_paths, "input_directory", str(tmp_path))
    monkeypatch.setattr(folder_paths, "temp_directory", str(tmp_path / "temp"))
    return tmp_path


def made(**changes):
    return WorldCamera.execute(LATENT, **{**INPUTS, **changes})


def test_keys_become_a_control_with_its_scale_and_a_picture():
    node = made()
    control, scale, picture = node.args
    assert control.values.shape == (1, 16, 5, 1, 1) and scale == control.scale == 0.2
    assert control.values[0, 11, :, 0, 0].tolist() == pytest.approx([0, 1, 1, 0, 0], abs=1e-4)
    assert picture.shape[0] == 1 and picture.shape[3] == 3 and picture.std() > 0.01
    assert node.ui["text"] == ["5 latent frames of w-8,none-8; scale 0.2."]
    assert len(node.ui["images"]) == 1


def test_a_drawn_path_is_its_keys():
    drawn, keys = made(path="away and back").args[0], made(keys="w-8,s-8").args[0]
    assert torch.equal(drawn.values, keys.values)
    for path in ("turn and back", "forward", "turn", "orbit", "stand still"):
        assert torch.isfinite(made(path=path).args[0].values).all()


def test_poses_of_a_file_are_those_of_the_keys_that_made_them(folders):
    from keepsake.host.model.camera_keys import keys_by_frame, read_keys, walk_poses

    walk = walk_poses(keys_by_frame(read_keys(INPUTS["keys"]), 16))
    numpy.save(folders / "poses.npy", walk.numpy())
    file = made(path="poses file", poses="poses.npy").args[0]
    assert torch.equal(file.values, made().args[0].values)
    before = WorldCamera.fingerprint_inputs(path="poses file", poses="poses.npy")
    numpy.save(folders / "poses.npy", numpy.concatenate([walk, walk]))
    assert WorldCamera.fingerprint_inputs(path="poses file", poses="poses.npy") != before


def walked(step):
    """A straight walk of so much in each pixel frame."""
    poses = numpy.tile(numpy.eye(4), (17, 1, 1))
    poses[:, 2, 3] = step * numpy.arange(17)
    return poses


def header(shape) -> bytes:
    """A file of numpy's whose header says a shape, with 17 poses behind it."""
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(17 * 128)


def test_of_a_long_file_the_takes_part_alone_is_read(folders):
    """A minute of poses behind the take's 17, of which the last is none."""
    poses = numpy.concatenate([walked(1), numpy.full((1500, 4, 4), numpy.nan)])
    numpy.save(folders / "poses.npy", poses)
    assert made(path="poses file", poses="poses.npy").args[1] == 4.0


@pytest.mark.parametrize(
    "content, match",
    [
        (numpy.eye(4), r"holds an array \[4, 4\], and poses are \[N, 4, 4\]"),
        (numpy.tile(numpy.eye(4), (10, 1, 1)), "has 10 poses, .* 17. Use a latent of at most 3"),
        (numpy.tile(2 * numpy.eye(4), (17, 1, 1)), "matrices that are no poses"),
        (numpy.tile(-numpy.eye(4), (17, 1, 1)), "matrices that are no poses"),
        (numpy.full((17, 4, 4), numpy.nan), "matrices that are no poses"),
        (numpy.array([{"a": 1}], dtype=object), "cannot be read as poses"),
        (b"not an array", "cannot be read as poses"),
        (None, "cannot be read as poses"),
        (numpy.tile(numpy.eye(4), (0, 1, 1)), "holds no poses"),
        (numpy.tile(numpy.eye(4), (17, 1, 1)).astype(str), "it is no array of real numbers"),
        (numpy.tile(numpy.eye(4), (17, 1, 1)) + 0j, "it is no array of real numbers"),
        (walked(1e300), "puts the camera 1.6e\\+301 from the origin"),
        (b"", "cannot be read as poses"),
        (header("(1000000000000, 4, 4)"), "cannot be read as poses"),
        (header("(9" + 30 * "0" + ", 4, 4)"), "cannot be read as poses"),
        (header("(17,"), "cannot be read as poses"),
        (header(5000 * "("), "cannot be read as poses"),
    ],
    ids=["one pose", "short", "scaled", "mirrored", "NaN", "objects", "text", "gone", "empty"]
    + ["words", "complex", "far", "no bytes", "huge", "overflow", "open", "deep"],
)
def test_another_file_is_refused(content, match, folders):
    if isinstance(content, bytes):
        (folders / "poses.npy").write_bytes(content)
    elif content is not None:
        numpy.save(folders / "poses.npy", content, allow_pickle=True)
    with pytest.raises(ValueError, match=match):
        made(path="poses file", poses="poses.npy")


def test_a_file_outside_the_input_folder_is_refused():
    with pytest.raises(ValueError, match="^'../poses.npy' is no .npy file of the input folder"):
        made(path="poses file", poses="../poses.npy")
    for name in ("../poses.npy", "gone.npy"):
        assert WorldCamera.fingerprint_inputs(path="poses file", poses=name) == ""
    with pytest.raises(ValueError, match="no file is chosen"):
        made(path="poses file")


def test_an_image_latent_has_no_path():
    with pytest.raises(ValueError, match="needs a video latent"):
        WorldCamera.execute({"samples": torch.zeros(1, 16, 8, 10)}, **INPUTS)
    with pytest.raises(ValueError, match="The latent is empty"):
        WorldCamera.execute({"samples": torch.zeros(1, 16, 0, 8, 10)}, **INPUTS)
    for latent in (None, {"samples": None}):
        with pytest.raises(ValueError, match="has no 'samples'"):
            WorldCamera.execute(latent, **INPUTS)


@pytest.mark.parametrize(
    "change", [dict(scale=1e-6), dict(scale=float("nan")), dict(scale=-1.0), dict(move=1e300)]
)
def test_a_scale_far_below_the_paths_moves_is_refused(change):
    """The model knows moves of up to the scale; a hundred times that is a step of another path."""
    assert made(scale=0.01).args[0].values.max() == pytest.approx(20, abs=1e-2)
    with pytest.raises(ValueError, match=r"moves by .* and scale is .* Set scale to about"):
        made(**{"scale": 0.2, **change})


def test_the_node_repeats_the_beginning_of_a_long_walk():
    (text,) = made(keys="w-1," * 3000).ui["text"]
    assert text.startswith("5 latent frames of w-1,w-1") and len(text) < 300


def test_the_demo_world_reads_the_same_keys():
    """Four pixel frames are a latent frame, in which its camera goes a step."""
    assert keys_camera("d-8,none-4,j-8", 6) == [0, STEP, 2 * STEP, 2 * STEP, STEP, 0]
    shape = (1, 16, 9, 8, 16)
    path = camera_control(shape, "go and return", 4, 3)
    assert torch.equal(camera_control(shape, "hold", 4, 3, "l-16,a-16"), path)
    assert camera("go and return", 9, 4) == keys_camera("d-16,a-16", 9)
