"""What hosts after 0.33 have and those before do not: used where it is there."""

from contextlib import contextmanager
from types import SimpleNamespace

import comfy.model_prefetch
import pytest
import torch
from comfy.ldm.wan.model import WanModel
from comfy.patcher_extension import CallbacksMP
from comfy_extras import nodes_model_advanced
from keepsake.host.forward import attention
from keepsake.host.model.backbone import require_wan
from keepsake.host.model.profiles import ARProfile, with_profile
from keepsake.kv_policies import KVPolicy, TaylorSeer
from keepsake.kv_policies.cache.pages import Pages
from keepsake.rollout.session import Session
from support import tiny
from torch.utils._python_dispatch import TorchDispatchMode

CHUNK = 2


def take(model, frames=4, **options):
    return tiny.ours(model, tiny.noise_of(frames), CHUNK, steps=2, **options)


# -- preferred_attention


@pytest.fixture
def asked(monkeypatch):
    """What the host's attention function was asked beside its tensors, call by call."""
    calls, real = [], attention.optimized_attention

    def record(q, k, v, **options):
        calls.append(options.copy())
        options.pop("preferred_attention", None)
        return real(q, k, v, **options)

    monkeypatch.setattr(attention, "optimized_attention", record)
    return calls


def test_the_attention_that_a_checkpoint_chose_is_passed_on(asked, monkeypatch):
    """Quantised checkpoints have a `comfy_attention` in each attention module."""
    model = tiny.tiny_model(layers=2)
    chosen = {}
    for block in model.model.diffusion_model.blocks:
        for part in (block.self_attn, block.cross_attn):
            chosen[id(part)] = SimpleNamespace(function=None)
            monkeypatch.setattr(part, "comfy_attention", chosen[id(part)], raising=False)
    take(model)
    passed = {id(options["preferred_attention"]) for options in asked}
    assert passed == {id(value) for value in chosen.values()}


def test_a_host_without_it_is_not_asked(asked):
    take(tiny.tiny_model(layers=2))
    assert asked
    assert not any("preferred_attention" in options for options in asked)


# -- pause_malloc_graph


class Allocations(TorchDispatchMode):
    """Storages by address, and whether each was made while the host did not record."""

    def __init__(self):
        super().__init__()
        self.paused, self.made_paused, self.kept = False, {}, []

    @contextmanager
    def pause(self):
        self.paused = True
        yield
        self.paused = False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if torch.is_tensor(out):
            self.kept.append(out)  # so that no address is given out twice
            self.made_paused.setdefault(out.untyped_storage().data_ptr(), self.paused)
        return out


def test_text_keys_are_allocated_outside_the_hosts_record(monkeypatch):
    """They are made in the first forward, and stay with the stream."""
    allocations, texts = Allocations(), []
    monkeypatch.setattr(
        comfy.model_prefetch, "pause_malloc_graph", allocations.pause, raising=False
    )
    call = attention.CrossAttentionPatch.__call__

    def watched(patch, x, context, transformer_options={}, **options):
        with allocations:
            out = call(patch, x, context, transformer_options=transformer_options, **options)
        for stream in transformer_options[attention.RUN].session.streams.values():
            texts.extend(tensor for text in stream.text.values() for tensor in text[1:])
        return out

    monkeypatch.setattr(attention.CrossAttentionPatch, "__call__", watched)
    take(tiny.tiny_model(layers=2))
    assert texts
    assert all(allocations.made_paused[text.untyped_storage().data_ptr()] for text in texts)
    assert not all(allocations.made_paused.values())


def test_keys_and_values_are_cached_outside_the_hosts_record(monkeypatch):
    """A stream, and with it the pages of its banks, is made at its first forward."""
    paused, cached = [], []

    @contextmanager
    def pause():
        paused.append(True)
        yield
        paused.pop()

    attend = Session.attend

    def watched(session, *args):
        cached.append(bool(paused))
        return attend(session, *args)

    monkeypatch.setattr(comfy.model_prefetch, "pause_malloc_graph", pause, raising=False)
    monkeypatch.setattr(Session, "attend", watched)
    take(tiny.tiny_model(layers=2))
    assert cached
    assert all(cached)


def test_outputs_that_are_held_and_forecast_lie_outside_the_hosts_record(monkeypatch):
    paused, seen = [], []

    @contextmanager
    def pause():
        paused.append(True)
        yield
        paused.pop()

    def watched(name):
        call = getattr(Session, name)

        def watch(session, *args):
            if session.device.type != "meta":  # of the estimate's dry run
                seen.append((name, bool(paused)))
            return call(session, *args)

        monkeypatch.setattr(Session, name, watch)

    monkeypatch.setattr(comfy.model_prefetch, "pause_malloc_graph", pause, raising=False)
    watched("hold_output")
    watched("forecast_output")
    policy = KVPolicy(schedule=TaylorSeer())
    tiny.ours(tiny.tiny_model(layers=2), tiny.noise_of(2), CHUNK, policy, steps=4)
    assert set(seen) == {("hold_output", True), ("forecast_output", True)}


def test_a_kernel_that_pauses_as_well_ends_no_pause_of_ours(monkeypatch):
    """The host's pause is a switch, not a count, and with guidance two streams take turns."""
    switch, paused = [False], []

    @contextmanager
    def pause():
        switch[0] = True
        yield
        switch[0] = False

    kernel, write = attention.optimized_attention, Pages.write

    def pausing(*args, **options):
        with pause():
            return kernel(*args, **options)

    def watched(pages, *args):
        paused.append(switch[0])
        return write(pages, *args)

    monkeypatch.setattr(comfy.model_prefetch, "pause_malloc_graph", pause, raising=False)
    monkeypatch.setattr(attention, "optimized_attention", pausing)
    monkeypatch.setattr(Pages, "write", watched)
    take(tiny.tiny_model(layers=2), cfg=2.0)
    assert paused
    assert all(paused)
    assert not switch[0]


# -- the shift of a profile


def test_a_profile_shifts_as_the_hosts_node_does():
    model = tiny.tiny_model(layers=1)
    node = nodes_model_advanced.ModelSamplingSD3()
    ours = with_profile(model, ARProfile(shift=7.0)).get_model_object("model_sampling")
    theirs = node.patch(model, 7.0)[0].get_model_object("model_sampling")
    assert torch.equal(ours.sigmas, theirs.sigmas)
    assert type(ours).__mro__[1:] == type(theirs).__mro__[1:]
    assert vars(ours).keys() == vars(theirs).keys()
    own = {name: value for name, value in vars(ours).items() if not name.startswith("_")}
    assert own == {name: value for name, value in vars(theirs).items() if name in own}


def test_a_profile_needs_no_call_of_the_hosts_node(monkeypatch):
    """V3 nodes have no `patch`."""
    monkeypatch.delattr(nodes_model_advanced, "ModelSamplingSD3")
    model = with_profile(tiny.tiny_model(layers=1), ARProfile(shift=7.0))
    assert model.get_model_object("model_sampling").shift == 7.0


# -- Model Sparse Attention


@pytest.mark.parametrize("frames, notes", [(4, 1), (2, 0)])
def test_that_the_sparse_attention_node_does_nothing_is_said(frames, notes):
    """It acts in a take of one chunk, which reads its own tokens alone."""
    model, stats = tiny.tiny_model(layers=1), []
    model.add_callback_with_key(
        CallbacksMP.ON_CLEANUP, "block_sparse_attention", lambda patcher: None
    )
    take(model, frames, on_stats=stats.append)
    found = [note for note in stats[0].notes if "Model Sparse Attention" in note]
    assert len(found) == notes


# -- Wan Animate 2


class WanAnimate2Model(WanModel):
    """As in hosts from 0.33 on."""


def test_wan_animate_2_is_refused_by_name(monkeypatch):
    model = tiny.tiny_model(layers=1)
    monkeypatch.setattr(model.model.diffusion_model, "__class__", WanAnimate2Model)
    with pytest.raises(ValueError, match="WanAnimate2Model, whose extra inputs .* Use a plain"):
        require_wan(model)
