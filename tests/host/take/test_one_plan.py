"""A take is planned once, and each share of it that is needed is simulated once."""

import comfy.hooks
import comfy.sample
import comfy.samplers
import pytest
import torch
from comfy.patcher_extension import WrappersMP
from keepsake.host.keys import OUTER_CALL
from keepsake.host.take.take import sample_take
from keepsake.kv_policies import DeCoPrune, KVPolicy, SinkWindow
from keepsake.nodes.sampler import ARVideoSamplerSelect
from support import tiny

FRAMES, CHUNK, SEED = 9, 2, 11


@pytest.fixture(scope="module")
def model(model):
    return tiny.prepared(model)


def by_node(model, policy, **options):
    return sample_take(
        model,
        tiny.prompt(1),
        None,
        1.0,
        {"samples": torch.zeros(1, 16, FRAMES, 4, 6)},
        seed=SEED,
        steps=3,
        chunk_frames=CHUNK,
        policy=policy,
        **options,
    )


def by_sampler(model, policy, **options):
    (sampler,) = ARVideoSamplerSelect.execute(CHUNK, policy, **options).result
    noise = comfy.sample.prepare_noise(torch.zeros(1, 16, FRAMES, 4, 6), SEED)
    return tiny.guide(model, sampler, noise, steps=3, seed=SEED)


POLICIES = pytest.mark.parametrize(
    "policy, dry_runs",
    [
        (KVPolicy(SinkWindow(1, 6)), 1),
        (KVPolicy(DeCoPrune(gamma=0.5)), 2),  # at least, and at most
    ],
    ids=["by frames", "by content"],
)


@POLICIES
@pytest.mark.parametrize("make", [by_node, by_sampler])
def test_a_take_is_planned_once(make, policy, dry_runs, model, counts):
    make(model, policy)
    assert counts == {"plans": 1, "dry runs": dry_runs}


@pytest.mark.parametrize(
    "policy, dry_runs",
    [
        (KVPolicy(SinkWindow(1, 6)), 1),
        (KVPolicy(DeCoPrune(gamma=0.5)), 3),  # and what is expected by what stayed so far
    ],
    ids=["by frames", "by content"],
)
def test_a_take_that_goes_on_is_planned_once(policy, dry_runs, model, counts):
    memories = []
    by_node(model, policy, stop_after=5, on_memory=memories.append)
    assert counts["plans"] == 1
    for make, name in ((by_node, "memory"), (by_sampler, "kv_memory")):
        counts.update({"plans": 0, "dry runs": 0})
        make(model, policy, **{name: memories[0]})
        assert counts == {"plans": 1, "dry runs": dry_runs}


def test_one_sampler_makes_many_takes_and_is_left_as_it_was(model, counts):
    """ComfyUI caches a node's SAMPLER, so a plan must not stay on it."""
    (sampler,) = ARVideoSamplerSelect.execute(CHUNK, None).result
    before = dict(vars(sampler))
    for frames in (5, 9):
        noise = tiny.noise_of(frames, 4, 6)
        taken = tiny.guide(model, sampler, noise, steps=1)
        assert taken.shape == noise.shape and vars(sampler) == before
    assert counts == {"plans": 2, "dry runs": 2}


def with_hooks(positive):
    """A conditioning with a LoRA hook of no weights, as the host's Create Hook LoRA makes it."""
    hooks = comfy.hooks.create_hook_lora({}, 1.0, 1.0)
    return comfy.hooks.set_hooks_for_conditioning(positive, hooks)


def test_a_take_with_hooks_is_planned_once(model, counts):
    """By the outer call: only then has the host applied them."""
    sample_take(
        model,
        with_hooks(tiny.prompt(1)),
        None,
        1.0,
        {"samples": torch.zeros(1, 16, FRAMES, 4, 6)},
        seed=SEED,
        steps=1,
        chunk_frames=CHUNK,
    )
    assert counts == {"plans": 1, "dry runs": 1}


def changing(model, before_ours, **changes):
    """The MODEL behind a node of another pack that changes arguments of the outer sampling call."""
    other = model.clone()

    def change(executor, noise, latent, sampler, sigmas, mask, callback, pbar, seed, **kwargs):
        arguments = {"sigmas": sigmas, "seed": seed, **changes}
        return executor(
            noise,
            latent,
            sampler,
            arguments["sigmas"],
            mask,
            callback,
            pbar,
            arguments["seed"],
            **kwargs,
        )

    other.add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, "other pack", change)
    if before_ours:
        wrappers = other.wrappers[WrappersMP.OUTER_SAMPLE]
        wrappers[OUTER_CALL] = wrappers.pop(OUTER_CALL)
    return other


def test_what_another_pack_changes_before_the_plan_is_planned_anew(model, counts):
    changed, _ = by_node(changing(model, True, seed=5), None)
    assert counts == {"plans": 2, "dry runs": 2}
    noise = comfy.sample.prepare_noise(torch.zeros(1, 16, FRAMES, 4, 6), SEED)
    sampler = tiny.sampler(chunk_frames=CHUNK)
    assert torch.equal(changed["samples"], tiny.guide(model, sampler, noise, steps=3, seed=5))


@pytest.mark.parametrize(
    "changes", [{"seed": 5}, {"sigmas": torch.tensor([1.0, 0.5, 0.0])}], ids=["seed", "sigmas"]
)
def test_what_another_pack_changes_after_the_plan_is_refused(model, changes):
    with pytest.raises(ValueError, match="after the take was planned. Remove it"):
        by_node(changing(model, False, **changes), None)


def test_a_sampler_inside_another_sampler_is_refused(model):
    """Its take was not planned, and the host was not told of its cache."""

    class Wrapping(comfy.samplers.Sampler):
        def sample(self, *args, **kwargs):
            return tiny.sampler(chunk_frames=CHUNK).sample(*args, **kwargs)

    with pytest.raises(ValueError, match="called by another sampler"):
        tiny.guide(model, Wrapping(), tiny.noise_of(5, 4, 6), steps=1)


def test_what_another_pack_puts_on_the_prompts_is_checked(model):
    """After the node has planned, and before the outer call begins to sample."""
    other = model.clone()

    def add_mask(executor, *args, **kwargs):
        for cond in executor.class_obj.conds["positive"]:
            cond["mask"] = torch.ones(1, 4, 6)
        return executor(*args, **kwargs)

    other.add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, "other pack", add_mask)
    wrappers = other.wrappers[WrappersMP.OUTER_SAMPLE]
    wrappers[OUTER_CALL] = wrappers.pop(OUTER_CALL)
    with pytest.raises(ValueError, match="with a mask cannot be cut into chunks"):
        by_node(other, None)
