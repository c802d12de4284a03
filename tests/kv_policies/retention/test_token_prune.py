"""The base that prunes by rank, with the smallest method on it: the tokens with the shortest keys
stay (KNorm, arXiv 2406.11430). Six tokens a frame, two frames a chunk.
"""

from dataclasses import dataclass

import pytest
import torch
from keepsake.kv_policies import Chunk, DeCoPrune, KVPolicy, RandomPrune, ReversePrune
from keepsake.kv_policies.retention.pruning_controls import CONTROLS
from keepsake.kv_policies.retention.token_prune import TokenPrune, TokenPruneRun
from keepsake.rollout.estimate import FORGOTTEN, KEPT, DryRun, estimate

from ... import fake
from ...rollout.test_estimate import measured, plan, untimed
from .test_decoprune import T, script, tokens


@dataclass(frozen=True, kw_only=True)
class KeyNorm(TokenPrune):
    """Keep the tokens with the shortest keys in layer 0."""

    def start(self, geometry, take, chooser=None):
        return KeyNormRun(self, geometry, take, chooser)


class KeyNormRun(TokenPruneRun):
    def rank(self, cache, chunk, x0):
        bank = cache.banks[0]
        k, _ = bank.read(0, bank.rows_of(chunk.start_frame, chunk.end_frame - 1))
        return -k.float().norm(dim=-1).mean(-1)[0]


@dataclass(frozen=True, kw_only=True)
class Whole(TokenPrune):
    """A method that cannot rank: `rank` is None."""

    def start(self, geometry, take, chooser=None):
        return WholeRun(self, geometry, take, chooser)


class WholeRun(TokenPruneRun):
    def rank(self, cache, chunk, x0):
        return None


def last_history(policy, frames=12):
    model, _ = script(policy, frames, 2)
    return list(model.histories.values())[-1]


def test_the_share_with_the_highest_ranks_of_each_old_chunk_stays():
    """The scripted key of token n is n long: of 12 to 23 and of 24 to 35 the first three stay."""
    want = [*tokens(0, 1), 12, 13, 14, 24, 25, 26, *tokens(6, 7, 8, 9)]
    assert last_history(KeyNorm(target_keep=0.25)) == want


def test_a_method_without_ranks_keeps_the_chunk_whole():
    assert last_history(Whole(target_keep=0.25)) == tokens(*range(10))


@dataclass(frozen=True, kw_only=True)
class Numbered(TokenPrune):
    """Keep the tokens with the highest numbers, ranked in `dtype`."""

    dtype: torch.dtype = torch.float32

    def start(self, geometry, take, chooser=None):
        return NumberedRun(self, geometry, take, chooser)


class NumberedRun(TokenPruneRun):
    def rank(self, cache, chunk, x0):
        return torch.arange(x0.shape[2] * T, dtype=self.policy.dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_ranks_may_have_any_dtype(dtype):
    """Saved while a chunk waits and loaded again, they are fp32."""
    want = [*tokens(0, 1), 21, 22, 23, 33, 34, 35, *tokens(6, 7, 8, 9)]
    policy = Numbered(target_keep=0.25, dtype=dtype)
    assert last_history(policy) == want
    run = policy.start(fake.geometry(), plan(KVPolicy(), 14).take)
    run.keep = lambda ranks: None  # not known yet
    run.after_clean(None, Chunk(1, 2, 2), torch.zeros(1, 1, 2, 4, 6))
    assert run.undecided[0].ranks.dtype == torch.float32
    run.restore(run.state())


def test_under_a_bound_the_lowest_ranks_leave_first():
    """Room for three frames before the dense ones: the sink's 12 tokens, of which none leaves, and
    six more: 36 to 38, which the method chose too, have the lowest ranks and leave.
    """
    want = [*tokens(0, 1), 12, 13, 14, 24, 25, 26, *tokens(8, 9, 10, 11)]
    assert last_history(KeyNorm(target_keep=0.25, most_frames=3), 14) == want


@pytest.mark.parametrize("policy", [KeyNorm(), KeyNorm(target_keep=0.4, most_frames=3)], ids=repr)
def test_its_estimate_is_exact(policy):
    result = estimate(plan(KVPolicy(policy), 14))
    assert result.most is result.least
    assert untimed(chunk.row for chunk in result.least) == measured(KVPolicy(policy), 14)


@pytest.mark.parametrize("name", CONTROLS)
def test_it_has_controls(name):
    model = last_history(CONTROLS[name](KeyNorm(target_keep=0.25)))
    assert [len([t for t in model if 12 * chunk <= t < 12 * chunk + 12]) for chunk in range(5)] == [
        12,
        3,
        3,
        12,
        12,
    ]


@pytest.mark.parametrize("kind", [DeCoPrune, RandomPrune, ReversePrune])
@pytest.mark.parametrize("share, kept", [(FORGOTTEN, 0), (0.25, 3), (KEPT, 12)])
def test_a_dry_run_keeps_the_share_that_it_is_told(kind, share, kept):
    """When frames 8 and 9 are made, the chunk of frames 2 and 3 has just been pruned."""
    dry = DryRun(plan(KVPolicy(kind()), 10), share)
    rows = [chunk.row for chunk in dry.chunks()]
    assert rows[-1].bank_tokens == (12 + kept + 2 * 12,)
    assert rows[-1].kept_tokens == (12 + kept + 2 * 12) * fake.LAYERS * fake.HEADS


def test_the_state_of_a_run_is_taken_over():
    states = []
    fake.take(
        KVPolicy(KeyNorm(target_keep=0.25, most_frames=4)),
        14,
        2,
        on_chunk=lambda session, _: states.append(session.streams["positive"].retention.state()),
    )
    run = KeyNorm(target_keep=0.25, most_frames=4).start(fake.geometry(), plan(KVPolicy()).take)
    with pytest.raises(ValueError, match="must be"):
        run.restore({})
    again = KeyNorm(target_keep=0.25, most_frames=4).start(
        fake.geometry(), plan(KVPolicy(), 14).take
    )
    again.restore(states[4])
    for name, value in again.state().items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, states[4][name])
        elif name != "records":
            assert value == states[4][name]
    kept = [record["keep"].tolist() for record in states[4]["records"]]
    assert [record["keep"].tolist() for record in again.state()["records"]] == kept
