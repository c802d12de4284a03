"""Groups of heads that hold other rows, in the host: two streams, a batch, main memory, fewer bits,
saved memories and selections, each to the last bit what it should equal.
"""

from dataclasses import replace

import pytest
import torch
from keepsake.kv_policies import (
    DirectedForcing,
    DummyForcing,
    ForcingKV,
    HeadMap,
    KVPolicy,
    KVStorage,
    MonarchRT,
)
from support import tiny

from .test_merged_memories import take

DUMMY = KVPolicy(DummyForcing())
FORCING = KVPolicy(ForcingKV(head_map=HeadMap("tiny", 4, ((), (0, 2), (1,)))))
both = pytest.mark.parametrize("policy", [DUMMY, FORCING], ids=["dummy", "forcing"])


@both
@pytest.mark.parametrize("stop", [3, 6, 12])
def test_it_goes_on_from_main_memory_and_from_a_saved_memory_to_the_last_bit(policy, stop):
    """Heads are told apart with latent frame 6: before the stop, at it, and after it."""
    whole, kept = take(policy), []
    in_main = replace(policy, storage=KVStorage("model", device="cpu"))
    first = take(in_main, stop_after=stop, on_memory=kept.append)
    assert torch.equal(first, whole[:, :, :stop])
    assert torch.equal(take(policy, memory=kept[0]), whole)


@both
def test_takes_of_a_batch_are_those_made_alone(policy):
    noise = tiny.noise_of(18, 4, 4, batch=2)
    assert torch.equal(take(policy, noise)[:1], take(policy, noise[:1]))


@both
def test_every_head_reads_as_many_frames_where_a_selection_may_read_all(policy):
    """A budget of all that is in reach: what it reads is what is there, up to rounding."""
    directed = replace(policy, selection=DirectedForcing(uniform_budget=20, active_from=4))
    torch.testing.assert_close(take(directed), take(policy), atol=1e-4, rtol=0)


def test_directed_forcing_reads_fewer_of_them():
    for policy in (DUMMY, FORCING):
        few = replace(policy, selection=DirectedForcing(uniform_budget=4, active_from=4))
        out = take(few)
        assert torch.isfinite(out).all() and not torch.equal(out, take(policy))
        assert torch.equal(out, take(few))


def test_monarch_reads_whole_frames_alone():
    assert torch.isfinite(take(replace(DUMMY, selection=MonarchRT()))).all()
    with pytest.raises(ValueError, match="MonarchRT reads whole latent frames, and Forcing-KV"):
        take(replace(FORCING, selection=MonarchRT()))


@pytest.mark.parametrize("dtype", ["fp8", "int8", "int4"])
def test_fewer_bits_hold_forcing_kv_and_are_refused_by_dummy_forcing(dtype):
    storage = KVStorage(dtype, full_chunks=1, sink_frames=0)
    whole, kept = take(replace(FORCING, storage=storage)), []
    take(replace(FORCING, storage=storage), stop_after=9, on_memory=kept.append)
    assert torch.equal(take(replace(FORCING, storage=storage), memory=kept[0]), whole)
    with pytest.raises(ValueError, match="Dummy Forcing tells heads apart in mid-take"):
        take(replace(DUMMY, storage=storage))
