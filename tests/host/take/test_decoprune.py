"""DeCoPrune in the real host, on tiny random Wan models."""

import re

import pytest
import torch
from keepsake.demo.load import load_demo_world
from keepsake.host.heads.heads import load_head_map, profile_heads
from keepsake.host.model.profiles import profile_of, with_profile
from keepsake.host.model.published import PROFILES
from keepsake.host.show.plots import plot_stats
from keepsake.kv_policies import DeCoPrune, DeCoPruneHS, HeadMap, KVPolicy, RandomPrune, Take
from keepsake.kv_policies.retention.probe_step import scored_step
from keepsake.nodes.heads import LoadHeadMap
from support import tiny

HALF = dict(mode="target_keep", target_keep=0.5)


def take(retention, noise, chunk_frames=2, model=None, **options):
    stats = []
    out = tiny.ours(
        model or tiny.tiny_model(),
        noise,
        chunk_frames,
        KVPolicy(retention),
        on_stats=stats.append,
        **options,
    )
    return out, stats[0]


@pytest.mark.parametrize(
    "options",
    [{}, dict(cfg=3.0), dict(prefix=tiny.noise_of(9, seed=8)), dict(steps=1)],
    ids=["plain", "cfg", "prefix", "1 step"],
)
def test_keeping_everything_is_bit_equal_to_full_kv(options):
    noise = tiny.noise_of(15)
    retention = DeCoPrune(gamma=-1.0, reindex="off")
    assert torch.equal(
        take(retention, noise, **options)[0], tiny.ours(tiny.tiny_model(), noise, 2, **options)
    )


@pytest.mark.parametrize("chunk_frames", [1, 3, 4])
@pytest.mark.parametrize("size", [(6, 10), (7, 9)])
def test_half_is_pruned_at_any_size(chunk_frames, size):
    out, stats = take(DeCoPrune(**HALF), tiny.noise_of(17, *size), chunk_frames)
    assert torch.isfinite(out).all() and 0 < stats.prune_ratio < 0.5
    kept = stats.memory_maps[0].at(stats.chunks[-1])
    assert kept.shape == (17, *stats.geometry.grid) and kept[0].min() == kept[16].min() == 1


def test_batch_items_are_as_if_alone_and_have_maps_of_their_own():
    noise = torch.cat([tiny.noise_of(12, seed=seed) for seed in (3, 4)])
    both, stats = take(DeCoPrune(**HALF), noise)
    alone, _ = take(DeCoPrune(**HALF), noise[:1])
    assert torch.equal(both[:1], alone)
    assert len(stats.memory_maps) == 2 and not torch.equal(
        *(kept.held_until for kept in stats.memory_maps)
    )


def test_guidance_prunes_both_streams_alike():
    _, one = take(DeCoPrune(**HALF), tiny.noise_of(15))
    _, two = take(DeCoPrune(**HALF), tiny.noise_of(15), cfg=3.0)
    assert two.streams == 2 and one.prune_ratio == two.prune_ratio > 0


def test_one_step_says_that_it_probed():
    _, stats = take(DeCoPrune(**HALF), tiny.noise_of(12), steps=1)
    assert "noised again" in stats.report() and all(
        "probe" in row.seconds_by_phase for row in stats.chunks[1:-1]
    )


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_every_profile_has_a_step_to_score_or_too_few_steps(profile):
    """By its own noise levels, as the host makes them. Of three steps it is the second one."""
    model = with_profile(tiny.tiny_model(), profile)
    sigmas = profile.take_sigmas(model.get_model_object("model_sampling")).tolist()
    step, sigma = scored_step(-1, Take(9, 0, tuple(sigmas), 0))
    expected = {1: None, 2: None, 3: 1}.get(profile.steps, 2)
    assert step == expected and 0.80 < sigma < 0.97


@pytest.mark.parametrize("steps, step", [(4, 1), (8, 2)])
def test_in_the_demo_world_the_step_at_sigma_90_is_scored(steps, step):
    model, *_ = load_demo_world()
    profile = profile_of(model.model_options)
    sigmas = profile.take_sigmas(model.get_model_object("model_sampling"), steps).tolist()
    assert scored_step(-1, Take(9, 0, tuple(sigmas), 0)) == (step, pytest.approx(0.90))


def test_a_probe_step_past_the_end_is_refused_before_sampling():
    with pytest.raises(ValueError, match="probe_step is 3, and this take has 4 steps"):
        take(DeCoPrune(probe_step=3), tiny.noise_of(9))


def test_a_head_map_of_another_model_is_refused_before_sampling():
    with pytest.raises(
        ValueError, match="'Wan' is for 30 layers of 12 heads, and this model has 3 layers of 4"
    ):
        take(DeCoPruneHS(head_map=HeadMap("Wan", 12, ((),) * 30)), tiny.noise_of(9))


def test_profile_save_load_and_sample_with_a_map(tmp_path, monkeypatch):
    import folder_paths
    from keepsake.host.take.patch import patch

    monkeypatch.setattr(folder_paths, "output_directory", str(tmp_path))
    monkeypatch.delitem(folder_paths.folder_names_and_paths, "kv_head_maps", raising=False)
    model = patch(tiny.tiny_model())
    latent = {"samples": torch.zeros(2, 16, 14, 6, 10)}
    head_map, shares, path = profile_heads(
        model, tiny.prompt(1), latent, seed=3, static_share=0.4, name="tiny"
    )
    assert shares.shape == (3, 4) and 0 < shares.min() <= shares.max() < 1
    assert load_head_map("tiny_00001_.json") == head_map and path.name == "tiny_00001_.json"
    assert "demo_world.json" in folder_paths.get_filename_list("kv_head_maps")
    before = LoadHeadMap.fingerprint_inputs("tiny_00001_.json")
    path.write_text(path.read_text().replace("1", "2"))  # by hand: the host reads it again
    assert LoadHeadMap.fingerprint_inputs("tiny_00001_.json") != before
    for name in ("", "..", "../escape", "a/b", "a\nb"):
        with pytest.raises(
            ValueError, match=re.escape(f"name is {name!r}, and must be a plain file name")
        ):
            profile_heads(model, tiny.prompt(1), latent, seed=3, static_share=0.4, name=name)
    with pytest.raises(
        ValueError, match="name has a name of 300 bytes"
    ):  # and not after the measurement
        profile_heads(model, tiny.prompt(1), latent, seed=3, static_share=0.4, name="x" * 300)
    three_heads = HeadMap("tiny", 4, ((), (0, 2), (3,)))
    out, stats = take(DeCoPruneHS(head_map=three_heads, **HALF), tiny.noise_of(17))
    assert torch.isfinite(out).all() and len(stats.chunks[-1].bank_tokens) == 2
    assert (
        stats.policy["retention"]["head_map"].static == three_heads.static
        and '"head_map"' in stats.to_json()
    )


def test_controls_prune_as_much_of_a_real_take():
    noise = tiny.noise_of(15)
    assert (
        take(RandomPrune(DeCoPrune(**HALF)), noise)[1].prune_ratio
        == take(DeCoPrune(**HALF), noise)[1].prune_ratio
    )


def test_the_plot_of_a_take():
    assert plot_stats(take(DeCoPrune(**HALF), tiny.noise_of(12))[1]).shape[-1] == 3


def test_the_plot_of_several_banks_over_a_prefix():
    """The first given chunk is measured before any bank is there."""
    three_heads = HeadMap("tiny", 4, ((), (0, 2), (3,)))
    _, stats = take(
        DeCoPruneHS(head_map=three_heads), tiny.noise_of(15), prefix=tiny.noise_of(5, seed=8)
    )
    assert (
        {len(row.bank_tokens) for row in stats.chunks}
        == {len(row.bank_bytes) for row in stats.chunks}
        == {2}
    )
    assert plot_stats(stats).shape[-1] == 3
