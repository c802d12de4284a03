"""dev/arenas with a world model: a start image of the take's length, and a camera that stands still
while the context lasts.
"""

import json
from argparse import Namespace

import pytest
import torch
from arenas import camera
from arenas.cmbench.takes import Context, Protocol, chunk_frames_of
from arenas.flags import FLAGS
from arenas.graphs import SAMPLER, rows_of
from arenas.maker import Maker
from arenas.node_run import NodeRun
from keepsake.host.files.video_file import as_bytes
from keepsake.host.model.published import PROFILES
from safetensors.torch import save_file
from support.tiny import lingbot_state

SIZE, GIVEN, NEW = (32, 64), 4, 4


@pytest.fixture(scope="module")
def maker(tmp_path_factory):
    """A tiny LingBot-World from a file, with the demo world's text encoder and VAE."""
    folder = tmp_path_factory.mktemp("model")
    file, graph_file = folder / "lingbot/tiny.safetensors", folder / "graph.json"
    file.parent.mkdir()
    config = {"transformer": {"num_heads": 2, "text_dim": 32}}
    sizes = dict(dim=256, ffn_dim=64, text_dim=32)
    save_file(lingbot_state(0, **sizes), file, {"config": json.dumps(config)})
    values = {name: options["default"] for name, options in FLAGS.items()}
    flags = Namespace(**values | {"checkpoint": str(file)})
    flags.profile = "LingBot-World v2 (CMBench)"
    (row,) = rows_of(flags)
    demo = {"class_type": "KeepsakeDemoWorld", "inputs": {}}
    graph = {**row.graph, "clip": demo, "vae": demo}
    graph["prompt"]["inputs"]["clip"] = ["clip", 1]
    graph["decode"]["inputs"]["vae"] = ["vae", 2]
    graph_file.write_text(json.dumps(graph))
    flags.workflow = str(graph_file)
    (row,) = rows_of(flags)
    assert row.graph["take"]["class_type"] == SAMPLER
    return Maker(row, NodeRun())


def test_the_start_image_is_the_first_frame_and_grey(maker):
    """As CMBench's condition: [first frame, zeros], encoded together, and known in frame 0."""
    assert maker.takes_start_image and maker.profile == PROFILES["LingBot-World v2 (CMBench)"]
    first = torch.rand(*SIZE, 3, generator=torch.Generator().manual_seed(1))
    values = maker.start_image(first, 3)
    clip = torch.cat([first[None], torch.full((8, *SIZE, 3), 0.5)])
    assert torch.equal(values["concat_latent_image"], maker.encode(clip))
    # The host's mask says where the picture is not known.
    assert values["concat_mask"][0, 0].flatten(1).amax(1).tolist() == [0, 1, 1]


def test_the_camera_stands_still_while_the_context_lasts(maker):
    control = camera.control_of(maker, "forward", GIVEN, NEW, SIZE)
    places = control.poses[:, 2, 3]  # z, at each latent frame
    assert places[:GIVEN].abs().max() == 0 and torch.all(places[GIVEN:].diff() > 0)
    assert places[GIVEN] == pytest.approx(4 * 0.05, abs=1e-5)  # four pixel frames of the key w
    still = camera.control_of(maker, "stand still", GIVEN, NEW, SIZE)
    assert still.poses.equal(torch.eye(4).expand(GIVEN + NEW, 4, 4))


def test_a_take_goes_on_from_its_context(maker):
    protocol = Protocol(NEW, SIZE)
    assert chunk_frames_of(maker) == 4
    pictures = torch.rand(13, *SIZE, 3, generator=torch.Generator().manual_seed(2))
    context = Context(maker.encode(pictures), maker.start_image(pictures[0], GIVEN + NEW))
    latents, stats = maker.take(
        "old town at day",
        GIVEN + NEW,
        protocol.size,
        seed=2,
        prefix=context.latents,
        control=camera.control_of(maker, protocol.camera, GIVEN, NEW, SIZE),
        start_image=context.start_image,
    )
    assert torch.equal(latents[:, :, :GIVEN], context.latents)
    assert [(row.given, row.frames) for row in stats.chunks] == [(True, 4), (False, 4)]
    assert stats.steps == 4 and stats.prune_ratio == 0
    assert maker.decode(latents, first=13).shape == (4 * NEW, *SIZE, 3)


@pytest.mark.parametrize("frames", [1, 2, 7, 8, 9, 10, 17])
def test_pictures_are_those_of_all_latents_decoded_at_once(maker, frames):
    """The stream's parts, pairs and what waits at the end, for odd counts and even ones."""
    generator = torch.Generator().manual_seed(3)
    latents = torch.randn(1, 16, frames, *(side // 8 for side in SIZE), generator=generator)
    whole = as_bytes(maker.vae.decode(latents)[0])
    for first in {0, len(whole) - 4, len(whole) - 1} & set(range(len(whole))):
        assert torch.equal(maker.decode(latents, first), whole[first:])
