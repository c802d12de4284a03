"""Prompts that change in a take, in the host: streams, equality, hooks, and what ordinary samplers
do with them.
"""

import gc
from pathlib import Path

import comfy.hooks
import comfy.samplers
import pytest
import torch
from keepsake.demo.load import load_demo_world
from keepsake.host.forward.prompts import add_prompt
from keepsake.host.keys import PROMPT_START
from keepsake.host.model.profiles import ARProfile, with_profile
from keepsake.kv_policies import (
    SWITCHES,
    CleanPass,
    ContextRecompute,
    DeCoPrune,
    FlashForward,
    Hierarchical,
    KVPolicy,
    RollingForcing,
    Schedule,
    SinkWindow,
)
from keepsake.nodes.prompts import PromptAtFrame, PromptTimeline
from support import tiny

POLICIES = {
    "full": KVPolicy(),
    "window": KVPolicy(SinkWindow(3, 9)),
    "pruned": KVPolicy(DeCoPrune(gamma=0.5)),
    "flash": KVPolicy(schedule=FlashForward(anchor_stride=4, block_anchors=2, anchor_window=2)),
    "hiar": KVPolicy(schedule=Hierarchical()),
    "rolling": KVPolicy(schedule=RollingForcing()),
    "recompute": KVPolicy(schedule=ContextRecompute()),
}


def at(frame, prompt, mode="swap", blend=0, so_far=None, recache_frames=12):
    return add_prompt(so_far or tiny.prompt(1), prompt, frame, mode, blend, recache_frames)


def take(model, positive, policy=None, frames=12, **options):
    stats = []
    out = tiny.ours(
        model,
        tiny.noise_of(frames, 4, 4),
        3,
        policy,
        positive=positive,
        steps=2,
        on_stats=stats.append,
        **options,
    )
    return out, stats[0]


@pytest.mark.parametrize("name", POLICIES)
def test_a_switch_to_an_equal_prompt_does_nothing(model, name):
    """Report 47: compare, don't assume."""
    plain, _ = take(model, tiny.prompt(1), POLICIES[name])
    for mode in ("swap",) if name in ("flash", "hiar", "rolling") else ("swap", "recache"):
        same, stats = take(model, at(6, tiny.prompt(1), mode), POLICIES[name])
        assert torch.equal(same, plain) and stats.streams == 1
        assert (
            "The prompt of latent frame 6 is the one in force, so nothing was done." in stats.notes
        )


@pytest.mark.parametrize("name", ["full", "window", "pruned", "hiar", "recompute"])
def test_a_prompt_changes_nothing_before_its_frame_and_all_after_it(model, name):
    """Reports 44 and 45: change the prompt in mid-video, by one wire."""
    plain, _ = take(model, tiny.prompt(1), POLICIES[name])
    other, _ = take(model, at(6, tiny.prompt(4)), POLICIES[name])
    assert torch.equal(other[:, :, :6], plain[:, :, :6]) and not torch.equal(
        other[:, :, 6:9], plain[:, :, 6:9]
    )


def test_flash_forwards_anchors_come_from_the_prompt_at_their_place(model):
    other, stats = take(model, at(6, tiny.prompt(4)), POLICIES["flash"])
    assert torch.isfinite(other).all() and not torch.equal(
        other, take(model, tiny.prompt(1), POLICIES["flash"])[0]
    )
    assert "the prompt changes (swap)" in stats.report()


def test_modes_differ_and_say_what_was_run_again(model):
    """Report 46: three explicit modes."""
    takes = {
        mode: take(model, at(6, tiny.prompt(4), mode, recache_frames=3))
        for mode in ("swap", "recache", "cut")
    }
    assert (
        "latent frames 3 to 5 were run again under the new prompt" in takes["recache"][1].report()
    )
    assert all(
        f"Latent frame 6: the prompt changes ({mode})." in stats.notes
        for mode, (_, stats) in takes.items()
    )
    outs = [out for out, _ in takes.values()]
    assert not any(
        torch.equal(a[:, :, 6:], b[:, :, 6:])
        for a, b in ((outs[0], outs[1]), (outs[0], outs[2]), (outs[1], outs[2]))
    )


def test_a_cut_under_the_same_prompt_is_still_a_new_shot(model):
    cut, stats = take(model, at(6, tiny.prompt(1), "cut"))
    assert not torch.equal(cut, take(model, tiny.prompt(1))[0]) and stats.prune_ratio == 0


def test_the_negative_has_a_timeline_of_its_own(model):
    plain, stats = take(model, tiny.prompt(1), cfg=3.0, negative=tiny.prompt(2))
    changed, changed_stats = take(
        model,
        tiny.prompt(1),
        cfg=3.0,
        negative=at(6, tiny.prompt(4), "recache", so_far=tiny.prompt(2)),
    )
    assert stats.streams == changed_stats.streams == 2
    assert torch.equal(changed[:, :, :6], plain[:, :, :6]) and not torch.equal(
        changed[:, :, 6:], plain[:, :, 6:]
    )
    assert "Latent frame 6: the negative prompt changes (recache)." in changed_stats.notes
    assert torch.equal(
        take(model, tiny.prompt(1), negative=at(6, tiny.prompt(4)))[0],
        take(model, tiny.prompt(1))[0],
    )  # off at cfg 1


def test_combined_timelines_are_streams_that_change_together(model):
    pair = at(6, tiny.prompt(4)) + at(6, tiny.prompt(6), so_far=tiny.prompt(5))
    out, stats = take(model, pair)
    assert stats.streams == 2 and torch.isfinite(out).all()
    with pytest.raises(
        ValueError,
        match="positive prompts do not pair up in time: of those that begin there are "
        r"2 at latent frame 0, 1 at latent frame 6\.",
    ):
        take(model, at(6, tiny.prompt(4)) + tiny.prompt(5))


def test_a_blend_goes_from_one_text_to_the_other(model):
    blended, stats = take(model, at(3, tiny.prompt(4), blend=6))
    swapped, plain = take(model, at(3, tiny.prompt(4)))[0], take(model, tiny.prompt(1))[0]
    assert torch.equal(blended[:, :, :3], plain[:, :, :3])
    assert not torch.equal(blended[:, :, 3:6], plain[:, :, 3:6]) and not torch.equal(
        blended[:, :, 3:6], swapped[:, :, 3:6]
    )
    middle = [[torch.lerp(tiny.prompt(1)[0][0], tiny.prompt(4)[0][0], 0.5), {}]]
    assert torch.equal(blended, take(model, at(6, tiny.prompt(4), so_far=at(3, middle)))[0])


def test_a_blend_of_texts_of_other_lengths_pads_with_zeros(model):
    out, _ = take(model, at(3, tiny.prompt(4, tokens=11), blend=9))
    assert torch.isfinite(out).all()


def test_a_batch_and_batched_prompts(model):
    noise, positive = (
        tiny.noise_of(9, 4, 4, batch=2),
        at(6, tiny.prompt(4, batch=2), "recache", so_far=tiny.prompt(1, batch=2)),
    )
    both = tiny.ours(model, noise, 3, positive=positive, steps=2)
    first = tiny.ours(
        model, noise[:1], 3, positive=[[text[:1], options] for text, options in positive], steps=2
    )
    assert torch.equal(both[:1], first)


def test_text_keys_are_those_of_the_prompt_in_force_and_no_more(model, monkeypatch):
    from keepsake.rollout.session import Session

    held, real = [], Session.close

    def close(session):
        held.append([len(stream.text) for stream in session.streams.values()])
        real(session)

    monkeypatch.setattr(Session, "close", close)
    take(model, at(9, tiny.prompt(6), so_far=at(3, tiny.prompt(4), blend=6)))
    assert held[-1] == [
        2
    ]  # one entry a layer, after five texts; before it, the estimate closed its own session


def test_scheduled_loras_keep_working(model):
    """Hooks are the host's: a prompt may bring a LoRA of its own."""
    key = "diffusion_model.blocks.0.ffn.0.weight"
    weights = {key: ("diff", (torch.randn((96, 64), generator=torch.Generator().manual_seed(3)),))}
    hooks = comfy.hooks.create_hook_lora(lora=None, strength_model=1.0, strength_clip=0.0)
    for hook in hooks.hooks:  # as if loaded from a file: the keys are the model's already
        hook.weights, hook.need_weight_init = weights, False
    hooked = comfy.hooks.set_hooks_for_conditioning(tiny.prompt(4), hooks)
    plain = take(model, at(6, tiny.prompt(4)))[0]
    changed, stats = take(model, at(6, hooked))
    assert torch.equal(changed[:, :, :6], plain[:, :, :6]) and not torch.equal(
        changed[:, :, 6:], plain[:, :, 6:]
    )
    assert torch.equal(take(model, at(6, tiny.prompt(4)))[0], plain) and stats.streams == 1


def test_an_ordinary_sampler_mixes_all_prompts(model):
    """What the help page says: only our sampler knows of time."""
    noise, euler = tiny.noise_of(3, 4, 4), comfy.samplers.ksampler("euler")
    timed = tiny.guide(model, euler, noise, positive=at(2, tiny.prompt(4)))
    assert torch.equal(
        timed, tiny.guide(model, euler, noise, positive=tiny.prompt(1) + tiny.prompt(4))
    )


def test_the_help_page_tells_what_schedules_can_do():
    page = (Path(__file__).parents[3] / "web/docs/KeepsakePromptTimeline.md").read_text(
        encoding="utf-8"
    )
    expected = {
        row.split("|")[1].split()[0]: [
            cell.strip().startswith("yes") for cell in row.split("|")[2:5]
        ]
        for row in page.splitlines()
        if row.startswith("| ") and not row.startswith(("| schedule", "| ---"))
    }
    kinds = {
        "clean": CleanPass,
        "FlashForward": FlashForward,
        "Hierarchical": Hierarchical,
        "Rolling": RollingForcing,
        "Krea": ContextRecompute,
    }
    assert expected == {
        word: [mode in kind.switches for mode in SWITCHES] for word, kind in kinds.items()
    }
    assert {kind.__name__ for kind in kinds.values()} == {
        kind.__name__ for kind in Schedule.__subclasses__() if "kv_policies" in kind.__module__
    }


def test_the_nodes_make_one_conditioning():
    _, clip, _ = load_demo_world()
    (timeline,) = PromptTimeline.execute(
        clip, "0: downtown at day\n2s: harbour at night", 16.0, "recache", 3, 9
    ).args
    assert [options[PROMPT_START].frame(4) for _, options in timeline] == [
        0,
        8,
    ] and not torch.equal(timeline[0][0], timeline[1][0])
    (joined,) = PromptAtFrame.execute(
        timeline, clip.encode_from_tokens_scheduled(clip.tokenize("old town")), 20, "cut", 0, 12
    ).args
    assert [options[PROMPT_START].frame(4) for _, options in joined] == [0, 8, 20] and len(
        timeline
    ) == 2
    with pytest.raises(ValueError, match="is a timeline itself"):
        PromptAtFrame.execute(timeline, timeline, 20, "swap", 0, 12)


def test_lines_of_a_timeline_that_meet_through_their_units_are_named(model):
    _, clip, _ = load_demo_world()

    def timeline(text):
        conditioning = PromptTimeline.execute(clip, text, 16.0, "swap", 0, 9).args[0]
        return [[tiny.prompt(4)[0][0], options] for _, options in conditioning]

    says = (
        "Lines 2 and 3 of the prompt's timeline, '2s' and '8', begin at the same latent frame, 8. "
        "Give each line a start of its own"
    )
    met = timeline("0: downtown\n2s: harbour\n8: old town")
    for positive in (met, met + timeline("\n\n\n0: downtown")):
        with pytest.raises(ValueError, match=says):
            take(model, positive)
    # Two timelines that change together are no such lines.
    apart = timeline("0: downtown\n2s: harbour") + timeline("\n\n0: downtown\n8: old town")
    assert take(model, apart)[1].streams == 2


def test_a_take_that_ends_in_a_recache_leaves_nothing(model):
    def live():
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    def stop(step, x0, x, total):
        if step == 4:  # the chunk after the recache
            raise KeyboardInterrupt

    positive = at(6, tiny.prompt(4), "recache")
    whole, before = take(model, positive)[0], live()
    with pytest.raises(KeyboardInterrupt):
        take(model, positive, callback=stop)
    assert live() <= before and torch.equal(take(model, positive)[0], whole)


def test_a_new_shot_begins_with_as_many_steps_as_a_take(model):
    """Models that make their first chunk in more steps know it by its empty history alone."""
    seen = []
    hook = model.model.diffusion_model.patch_embedding.register_forward_pre_hook(
        lambda module, args: seen.append(args[0].shape[2])
    )
    profiled = with_profile(
        tiny.prepared(model),
        ARProfile(name="tiny", chunk_frames=3, steps=2, shift=5.0, first_chunk_steps=4),
    )
    for mode, forwards in (
        ("swap", 5 + 3 + 2),
        ("cut", 5 + 5 + 2),
    ):  # steps and the clean pass of each chunk; the last has none
        seen.clear()
        tiny.guide(
            profiled,
            tiny.sampler(),
            tiny.noise_of(9, 4, 4),
            positive=at(3, tiny.prompt(4), mode),
            steps=2,
        )
        assert len(seen) == forwards
    hook.remove()


def test_guiders_with_rules_of_their_own_change_prompts_too(model):
    from comfy_extras.nodes_custom_sampler import Guider_DualCFG

    outs = []
    for positive in (tiny.prompt(1), at(3, tiny.prompt(4), "recache")):
        guider = Guider_DualCFG(tiny.prepared(model))
        guider.set_cfg(2.0, 3.0)
        guider.set_conds(positive, tiny.prompt(2), tiny.prompt(3))
        noise = tiny.noise_of(6, 4, 4)
        outs.append(
            guider.sample(
                noise,
                torch.zeros_like(noise),
                tiny.sampler(chunk_frames=3),
                torch.tensor([1.0, 0.5, 0.0]),
                disable_pbar=True,
                seed=1,
            )
        )
    assert torch.equal(outs[0][:, :, :3], outs[1][:, :, :3]) and not torch.equal(
        outs[0][:, :, 3:], outs[1][:, :, 3:]
    )
