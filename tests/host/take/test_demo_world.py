"""The shipped weights, loaded by the host's own loaders: they draw, they listen, they remember."""

import pytest
import torch
from keepsake.demo import world
from keepsake.demo.load import WEIGHTS, load_demo_world
from keepsake.host.take.take import sample_take
from keepsake.kv_policies import KVPolicy, SinkWindow


@pytest.fixture(scope="module")
def parts():
    return load_demo_world()


def key_frames(parts, prompt, frames=30, policy=None, seed=5):
    model, clip, vae = parts
    latent = {"samples": torch.zeros(1, 16, frames, world.ROWS, world.COLUMNS)}
    control = world.camera_control(latent["samples"].shape, "go and return", frames // 2 - 1, 0)
    out, _ = sample_take(
        model,
        clip.encode_from_tokens_scheduled(clip.tokenize(prompt)),
        None,
        1.0,
        latent,
        seed=seed,
        steps=0,
        chunk_frames=0,
        policy=policy or KVPolicy(),
        prefix=None,
        control=control,
        sigmas=None,
    )
    return vae.decode(out["samples"][0].movedim(1, 0)[:, :, None])[:, 0]


def test_the_weights_fit_the_promised_size():
    assert sum(path.stat().st_size for path in WEIGHTS.iterdir()) <= 12 * 2**20


def test_the_vae_returns_what_it_was_given(parts):
    error = variance = 0
    for seed, (time, district) in enumerate(
        (("day", "downtown"), ("sunset", "old town"), ("night", "harbour"))
    ):
        video = world.views(world.draw(11 + seed, 60, time, district), [0, 2, 4, 4, 2]).movedim(
            1, -1
        )
        latents = parts[2].encode(video)
        assert latents.shape == (1, 16, 5, 8, 16)
        decoded = parts[2].decode(latents)[0]
        assert decoded.shape == video.shape
        error, variance = error + (decoded - video).square().mean(), variance + video.var()
    assert error < 0.4 * variance


def test_a_place_has_the_same_latents_in_every_view(parts):
    picture = world.draw(11, 60, "night", "harbour")
    a, b = (parts[2].encode(world.views(picture, [left]).movedim(1, -1)) for left in (4, 10))
    assert torch.allclose(a[..., 6:], b[..., :-6], atol=1e-4)


def test_the_hosts_preview_shows_the_worlds_colours(parts):
    """Of worlds that the colours were not fitted to; Wan's own would be further off than a grey
    picture.
    """
    latent_format = parts[0].model.latent_format
    pictures = torch.stack(
        [world.draw(99, world.COLUMNS, time, "old town") for time in world.TIMES]
    )
    latents = torch.cat(
        [
            latent_format.process_in(parts[2].encode(picture.movedim(0, -1)[None]))
            for picture in pictures
        ]
    )[:, :, 0]
    shown = (
        torch.nn.functional.linear(
            latents.movedim(1, -1),
            torch.tensor(latent_format.latent_rgb_factors).T,
            torch.tensor(latent_format.latent_rgb_factors_bias),
        )
        / 2
        + 0.5
    )  # as Latent2RGBPreviewer does
    cells = torch.nn.functional.avg_pool2d(pictures, world.CELL).movedim(1, -1)
    assert (shown - cells).square().mean() < 0.5 * cells.var()


def test_the_prompt_sets_the_time_of_day(parts):
    assert (
        key_frames(parts, "downtown at night", 6).mean()
        < 0.6 * key_frames(parts, "downtown at day", 6).mean()
    )


def test_a_place_comes_back_with_full_memory_and_not_without(parts):
    def error_of_the_return(policy):
        frames = key_frames(parts, "old town at sunset", policy=policy)
        return float((frames[28] - frames[0]).square().mean())

    assert error_of_the_return(KVPolicy()) < 0.25 * error_of_the_return(KVPolicy(SinkWindow(0, 4)))
