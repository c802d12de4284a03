"""Takes that begin with given frames: a start picture, a clip to go on with, their sizes and
batches, and what comes out.
"""

import pytest
import torch
from comfy_extras.nodes_custom_sampler import SamplerCustomAdvanced
from keepsake.demo.load import load_demo_world
from keepsake.demo.world import camera_control
from keepsake.host.take.take import sample_take
from keepsake.kv_policies import KVPolicy, SinkWindow
from keepsake.nodes.sampler import ARVideoSamplerSelect
from support import tiny


def take(model, prefix, frames=7, drop_given=False, batch=1, **options):
    latent = {"samples": tiny.noise_of(frames, batch=batch, **tiny.SIZE) * 0}
    return sample_take(
        model,
        tiny.prompt(1),
        None,
        1.0,
        latent,
        seed=5,
        steps=2,
        chunk_frames=3,
        prefix=prefix and {"samples": prefix[0]},
        drop_given=drop_given,
        **options,
    )


def refused(match, model, prefix, **options):
    steps = []
    with pytest.raises(ValueError, match=match):
        take(model, [prefix], callback=lambda *progress: steps.append(progress), **options)
    assert not steps


@pytest.mark.parametrize("given", [1, 4])
def test_new_frames_alone_are_the_end_of_the_whole(model, given):
    """Reports 56 and 57: go on from latents; given ones come out to the last bit, and can be left
    out.
    """
    prefix = tiny.noise_of(given, seed=8, **tiny.SIZE)
    whole, stats = take(model, [prefix])
    new, same_stats = take(model, [prefix], drop_given=True)
    assert torch.equal(whole["samples"][:, :, :given], prefix) and torch.equal(
        new["samples"], whole["samples"][:, :, given:]
    )
    assert (
        (stats.given_frames, stats.given_pixel_frames)
        == (given, 1 + 4 * (given - 1))
        == (same_stats.given_frames, same_stats.given_pixel_frames)
    )
    assert (
        stats.to_dict()["given_pixel_frames"] == stats.given_pixel_frames
        and f"{given} ({stats.given_pixel_frames}) of them given" in stats.report()
    )


def test_nothing_is_dropped_where_nothing_is_given(model):
    whole, stats = take(model, None, drop_given=True)
    assert whole["samples"].shape[2] == 7 and stats.given_frames == stats.given_pixel_frames == 0


def test_the_sampler_form_drops_given_frames_as_well(model):
    from comfy_extras.nodes_custom_sampler import Guider_Basic, Noise_RandomNoise

    prefix, out = tiny.noise_of(2, seed=8, **tiny.SIZE), []
    for drop in (False, True):
        (sampler,) = ARVideoSamplerSelect.execute(
            3, prefix={"samples": prefix}, drop_given=drop
        ).args
        guider = Guider_Basic(tiny.prepared(model))
        guider.set_conds(tiny.prompt(1))
        out.append(
            SamplerCustomAdvanced.execute(
                Noise_RandomNoise(3),
                guider,
                sampler,
                torch.tensor([1.0, 0.5, 0.0]),
                {"samples": torch.zeros(1, 16, 7, 4, 4)},
            )[0]["samples"]
        )
    assert torch.equal(out[1], out[0][:, :, 2:])


def test_a_cut_off_take_goes_on_with_any_number_of_given_frames(model):
    """Reports 53 and 55: given frames may be several, and need be no multiple of the chunk."""
    for given in (1, 2, 3, 5):
        first, _ = take(model, None, frames=given)
        rest, stats = take(model, [first["samples"]], frames=given + 4)
        assert (
            torch.equal(rest["samples"][:, :, :given], first["samples"])
            and torch.isfinite(rest["samples"]).all()
        )
        assert [row.given for row in stats.chunks].count(True) == -(-given // 3)


def test_given_frames_prime_the_memory(model):
    """Report 52: image to video asked of a text to video model."""
    a, b = (
        take(model, [tiny.noise_of(1, seed=seed, **tiny.SIZE)])[0]["samples"] for seed in (8, 9)
    )
    assert not torch.equal(a[:, :, 1:], b[:, :, 1:])


def test_a_batch_of_start_pictures_and_one_for_all(model):
    pair = tiny.noise_of(1, batch=2, seed=8, **tiny.SIZE)
    each, _ = take(model, [pair], batch=2)
    assert torch.equal(each["samples"][:, :, :1], pair)
    shared, _ = take(model, [pair[:1]], batch=2)
    assert torch.equal(shared["samples"][:, :, :1], pair[:1].expand(2, -1, -1, -1, -1))
    refused(
        "prefix has a batch of 3, the take of 2",
        model,
        tiny.noise_of(1, batch=3, **tiny.SIZE),
        batch=2,
    )


def test_what_cannot_begin_a_take_is_refused_in_words(model):
    """Report 51: one image gives 'video directory not found'."""
    refused(r"shape \[1, 16, 4, 4\] and must be video latents", model, torch.zeros(1, 16, 4, 4))
    refused("height and width must agree", model, tiny.noise_of(1, 6, 4))
    refused(
        "fills 7 of the take's 7 latent frames, so nothing is left to make",
        model,
        tiny.noise_of(7, **tiny.SIZE),
    )
    refused("height and width must agree", model, torch.zeros(1, 4, 1, 4, 4))


def test_a_prefix_that_leaves_no_room_in_the_window_still_works(model):
    out, stats = take(
        model, [tiny.noise_of(6, seed=8, **tiny.SIZE)], frames=9, policy=KVPolicy(SinkWindow(1, 4))
    )
    assert torch.isfinite(out["samples"]).all() and stats.chunks[-1].bank_tokens[0] <= 4 * 4


def test_images_become_1_and_then_4_to_a_latent_frame():
    """Report 49, and the seam rule of the help page: whole decoded, given pictures dropped, nothing
    is lost and none is doubled.
    """
    demo, clip, vae = load_demo_world()
    pictures = torch.rand(
        (11, 64, 128, 3), generator=torch.Generator().manual_seed(1)
    )  # 1 + 4 * 2, and two that are left over
    prefix = vae.encode(pictures)
    assert prefix.shape[2] == 3
    latent = {"samples": torch.zeros(1, 16, 6, 8, 16)}
    out, stats = sample_take(
        demo,
        clip.encode_from_tokens_scheduled(clip.tokenize("downtown at day")),
        None,
        1.0,
        latent,
        seed=1,
        prefix={"samples": prefix},
        control=camera_control(latent["samples"].shape, "loop", 3, 0),
    )
    decoded = vae.decode(out["samples"])
    decoded = decoded.reshape(-1, *decoded.shape[-3:])
    assert len(decoded) == stats.pixel_frames == 21 and len(
        decoded[stats.given_pixel_frames :]
    ) == 4 * (6 - 3)
