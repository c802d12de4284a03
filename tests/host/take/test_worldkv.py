"""WorldKV on a camera model, through the whole path: beside its authors' own loop, which
`oracles/worldkv.safetensors` holds, and on the demo world.
"""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from comfy_extras.nodes_wan import WanImageToVideo
from keepsake.demo import world
from keepsake.demo.camera import camera_input
from keepsake.demo.load import load_demo_world
from keepsake.host.model.camera import Lens, camera_control
from keepsake.host.model.checkpoint import load_ar_model
from keepsake.host.model.published import PROFILES
from keepsake.host.take.patch import patch
from keepsake.kv_policies import (
    DirectedForcing,
    FullKV,
    KVMemoryError,
    KVPolicy,
    KVStorage,
    SinkWindow,
    WorldKV,
)
from keepsake.kv_policies.retention.pose_retrieval import pose_distances
from safetensors.torch import load_file
from support import tiny

ORACLES = Path(__file__).parent / "oracles"
AUTHORS = load_file(ORACLES / "worldkv.safetensors")
CHUNK, FRAMES = 3, 27
LENS = Lens(500.0, 510.0, 416.0, 240.0)
# Windows of which no chunk is read twice: the authors' loop reads those twice that are both
# retrieved and recent.
CASES = {
    "retrieved": WorldKV(retrieved_frames=6, keep_ratio=1.0),
    "compressed": WorldKV(retrieved_frames=3),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    file = tiny.lingbot_file(tmp_path_factory.mktemp("models") / "lingbot.safetensors")
    return patch(load_ar_model(file, PROFILES["LingBot-World v1 fast"]))


def begun(model):
    """A prompt with a start image's latents as the authors' loop had them."""
    start = torch.randn(16, FRAMES, 8, 10, generator=torch.Generator().manual_seed(11))
    latents = model.get_model_object("latent_format").process_out(start[None])
    vae = SimpleNamespace(encode=lambda pictures: latents)
    words = load_file(ORACLES / "lingbot.safetensors")["text"]
    text = [[torch.nn.functional.pad(words, (0, 0, 0, 500)), {}]]
    size = dict(width=80, height=64, length=4 * FRAMES - 3, batch_size=1)
    return WanImageToVideo.execute(text, text, vae, **size, start_image=torch.zeros(1, 64, 80, 3))[
        0
    ]


def camera(poses=AUTHORS["poses"]):
    return camera_control(poses, camera_control(AUTHORS["poses"], 0.0, LENS).scale, LENS)


def take(model, policy, **request):
    """Normalised latents of a take with the authors' noise."""
    request.setdefault("control", camera())
    sampler = tiny.sampler(policy, CHUNK, **request)
    profile = model.model_options["transformer_options"]["keepsake_profile"]
    sigmas = profile.take_sigmas(model.get_model_object("model_sampling"))
    noise = tiny.noise_of(FRAMES, 8, 10)
    latents = tiny.guide(model, sampler, noise, begun(model), sigmas=sigmas)
    return model.get_model_object("latent_format").process_in(latents)


def apart(a, b) -> float:
    return float((a - b).abs().max())


@pytest.mark.parametrize("name", CASES)
def test_a_take_equals_the_authors(name, model):
    made = take(model, KVPolicy(CASES[name]))
    assert apart(made, AUTHORS[name]) < 1e-4
    other = "compressed" if name == "retrieved" else "retrieved"
    assert apart(made, AUTHORS[other]) > 1e-2


def test_the_distances_are_the_authors():
    poses = camera().poses
    chunks = [range(first, first + 3) for first in range(3, 18, 3)]
    ours = pose_distances(poses, range(24, 27), chunks)
    assert torch.allclose(ours.float(), AUTHORS["distances_retrieved"], atol=1e-5)


def test_two_runs_are_one(model):
    policy, memories = KVPolicy(CASES["compressed"]), []
    whole = take(model, policy)
    first = take(model, policy, stop_after=18, on_memory=memories.append)
    assert torch.equal(first, whole[:, :, :18])
    assert torch.equal(take(model, policy, memory=memories[0])[:, :, 18:], whole[:, :, 18:])
    # The same steps from another place are another path: nothing there is where it was.
    elsewhere = AUTHORS["poses"].clone()
    elsewhere[:, 0, 3] += 1
    with pytest.raises(KVMemoryError, match="path up to latent frame 18"):
        take(model, policy, memory=memories[0], control=camera(elsewhere))
    bent = AUTHORS["poses"].clone()
    bent[4 * 18 :] = bent[4 * 18]
    made = take(model, policy, memory=memories[0], control=camera(bent))
    assert apart(made[:, :, 18:], whole[:, :, 18:]) > 1e-2


def test_fewer_bits_hold_it_where_all_tokens_stay(model):
    whole = take(model, KVPolicy(CASES["retrieved"]))
    main = take(model, KVPolicy(CASES["retrieved"], storage=KVStorage("model", device="cpu")))
    assert torch.equal(main, whole)
    compressed = take(model, KVPolicy(CASES["compressed"]))
    main = take(model, KVPolicy(CASES["compressed"], storage=KVStorage("model", device="cpu")))
    assert torch.equal(main, compressed)
    int8 = KVPolicy(CASES["retrieved"], storage=KVStorage("int8"))
    assert 0 < apart(take(model, int8), whole) < apart(whole, compressed)
    with pytest.raises(
        ValueError, match="WorldKV keeps other tokens in each layer, and KV Storage"
    ):
        take(model, KVPolicy(WorldKV(), storage=KVStorage("int8")))


def test_directed_forcing_reads_of_what_is_in_reach(model):
    directed = DirectedForcing(uniform_budget=6, active_from=12)
    policy = KVPolicy(CASES["retrieved"], directed)
    assert apart(take(model, policy), take(model, KVPolicy(CASES["retrieved"]))) > 1e-3
    with pytest.raises(ValueError, match="WorldKV keeps other tokens in each layer"):
        take(model, KVPolicy(WorldKV(), directed))


def demo(policy, **request):
    model, clip, _ = load_demo_world()
    shape = (1, 16, 24, world.ROWS, world.COLUMNS)
    control = camera_input(world.camera_positions(shape, "go and return", 11, 0))
    sampler = tiny.sampler(policy, 3, **{"control": control, **request})
    prompt = clip.encode_from_tokens_scheduled(clip.tokenize("downtown at day"))
    return tiny.guide(model, sampler, tiny.noise_of(24, *shape[3:]), prompt)


def test_on_the_demo_world_it_needs_the_camera():
    policy = KVPolicy(WorldKV(3, 3, 3))
    made = demo(policy)
    assert apart(made, demo(KVPolicy(FullKV()))) > 1e-2
    assert apart(made, demo(KVPolicy(SinkWindow(3, 9)))) > 1e-2
    with pytest.raises(ValueError, match="nothing is connected .* or Demo World Camera"):
        demo(policy, control=None)
    values = world.camera_control((1, 16, 24, world.ROWS, world.COLUMNS), "go and return", 11, 0)
    with pytest.raises(ValueError, match="a control without a camera is connected"):
        demo(policy, control=values)
