"""Several banks: heads that keep different tokens, each group attending to its own."""

from dataclasses import dataclass

import pytest
import torch
from keepsake.kv_policies import BankPlan, FullKV, KVPolicy, Retention, RetentionRun

from ... import fake


@dataclass(frozen=True)
class TwoBanks(Retention):
    """Head 1 in layer 0 and head 0 in layer 1 form the second bank, which may forget all but the
    newest chunk.
    """

    forget: bool = False

    second: tuple = ((1,), (0,))  # heads of the second bank, by layer

    def banks(self, geometry, take):
        return [
            BankPlan(take.total_frames, take.total_frames, heads)
            for heads in (((0,), (1,)), self.second)
        ]

    def start(self, geometry, take):
        return TwoBanksRun(self.forget)


class TwoBanksRun(RetentionRun):
    def __init__(self, forget):
        self.forget = forget

    def begin_chunk(self, cache, chunk):
        if self.forget:
            bank = cache.banks[1]
            bank.keep((bank.frame[: bank.length] >= chunk.start_frame - 2).nonzero()[:, 0])


def test_two_banks_that_keep_everything_equal_one():
    one, *_ = fake.take(KVPolicy(FullKV()))
    two, *_ = fake.take(KVPolicy(TwoBanks()))
    assert torch.allclose(one, two, atol=1e-12)


def test_a_bank_forgets_for_its_own_heads_alone():
    everything, *_ = fake.take(KVPolicy(TwoBanks()))
    forgetting, trace, _ = fake.take(KVPolicy(TwoBanks(forget=True)))
    assert torch.allclose(everything[:, :, :4], forgetting[:, :, :4]) and not torch.allclose(
        everything[:, :, 4:], forgetting[:, :, 4:]
    )
    assert [row.bank_tokens for row in trace.rows] == [(0, 0), (12, 12), (24, 12), (36, 12)]
    assert trace.rows[3].kept_tokens == 2 * 36 + 2 * 12  # one head in each of two layers, per bank


@pytest.mark.parametrize("second", [((1,), ()), ((0, 1), (0,))])
def test_banks_that_lose_a_head_or_hold_it_twice_are_an_error(second):
    with pytest.raises(RuntimeError, match="share out all heads"):
        fake.take(KVPolicy(TwoBanks(second=second)))
