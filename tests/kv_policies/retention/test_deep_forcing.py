"""Deep Forcing, by hand: when it cuts, what each layer chooses, and where the sink stands. Six
tokens a frame, two layers.
"""

import pytest
import torch
from keepsake.kv_policies import (
    HISTORY,
    BankPlan,
    Chunk,
    DeepForcing,
    DirectedForcing,
    Forward,
    KVCache,
    KVPolicy,
    KVStorage,
    Storage,
    Take,
)
from keepsake.kv_policies.retention.deep_forcing import best
from keepsake.rollout.session import Session

from ... import fake

TAKE = Take(12, 0, (1.0, 0.0), 0)


def ids_of(bank, layer):
    """Tokens of the history of a layer."""
    return (bank.frame * 6 + bank.cell)[layer, : bank.committed].tolist()


def test_every_second_chunk_is_cut_as_published():
    """Reads grow to 21 frames; then 16, 19, 16, 19. At a cut the sink is turned to begin 16 frames
    before the chunk, and stays there for the chunk after.
    """
    reads, sinks = {}, {}

    def look(session, forward, x, sigma):
        bank, start = fake.bank(session), forward.chunk.start_frame
        reads[start] = bank.length / 6
        sinks[start] = bank.position[:, :60:6].tolist()

    fake.take(KVPolicy(DeepForcing()), 36, 3, on_forward=look)
    assert list(reads.values()) == [3, 6, 9, 12, 15, 18, 21, 16, 19, 16, 19, 16]
    for start, first in ((18, 0), (21, 5), (24, 5), (27, 11), (30, 11), (33, 17)):
        assert sinks[start] == [list(range(first, first + 10))] * 2


def test_between_sink_and_recent_frames_each_layer_has_tokens_of_its_own():
    held = {}

    def look(session, chunk):
        held[chunk.start_frame] = [ids_of(fake.bank(session), layer) for layer in range(2)]

    fake.take(KVPolicy(DeepForcing()), 27, 3, on_chunk=look)
    first, second = held[21]
    for layer in (first, second):
        assert layer[:60] == list(range(60))  # frames 0 to 9
        assert layer[72:] == list(range(120, 144))  # frames 20 to 23
        assert 60 <= layer[60] and layer[71] < 120
    assert first[60:72] != second[60:72]


def started(policy, frames):
    """A run and a cache of `frames` latent frames, chunks of one. A token's key is its id in layer
    0, and minus that in layer 1.
    """
    geometry = fake.geometry(1)
    run = policy.start(geometry, TAKE)
    plan = BankPlan(frames, frames, held_frames=policy.sink_frames, by_layer=True)
    cache = KVCache(geometry, [plan], Storage(), torch.float64, torch.device("cpu"))
    for start in range(frames):
        cache.reserve(Chunk(start, start, 1).span)
        ids = torch.arange(6 * start, 6 * start + 6).view(1, -1, 1, 1).double().expand(1, -1, 2, 8)
        for layer, sign in enumerate((1, -1)):
            cache.banks[0].write(layer, sign * ids, ids)
        cache.commit()
    return run, cache


def forward_of(run, cache, start, query, step=0):
    """The first forward of a chunk, all of whose queries are one number, up to the choice."""
    chunk = Chunk(start, start, 1)
    if step == 0:
        run.begin_chunk(cache, chunk)
    for layer in range(2):
        q = torch.full((1, 6, 2, 8), float(query), dtype=torch.float64)
        run.choose(layer, Forward.of(chunk, step), q, cache.banks[0])
    return [ids_of(cache.banks[0], layer) for layer in range(2)]


def test_the_highest_sums_of_q_k_are_chosen():
    """Of the tokens of frames 1 to 3 six stay: with positive queries the largest keys."""
    run, cache = started(DeepForcing(1, 3, 1, 4), 4)
    assert forward_of(run, cache, 4, 1.0) == [
        [*range(6), *range(18, 24)],
        [*range(6), *range(6, 12)],
    ]


def test_the_queries_of_the_forward_before_count():
    """Two frames of queries: the forward's own and the last one before it, which weighs more."""
    run, cache = started(DeepForcing(1, 4, 2, 4), 4)
    forward_of(run, cache, 3, -100.0, step=2)  # of another chunk: nothing to choose
    forward_of(run, cache, 3, -5.0, step=3)
    # frame 3 is among the recent frames
    assert forward_of(run, cache, 4, 1.0)[0] == [*range(6), *range(6, 12), *range(18, 24)]


def test_what_was_chosen_too_often_comes_last():
    scores, counts = torch.tensor([5.0, 4.0, 3.0, 2.0]), torch.tensor([7, 0, 0, 6])
    assert best(scores, counts, 2, limit=7).tolist() == [1, 2]
    assert best(scores, counts, 2, limit=0).tolist() == [0, 1]
    assert best(scores, counts, 4, limit=7).tolist() == [0, 1, 2, 3]
    assert best(scores, torch.full((4,), 7), 1, limit=7).tolist() == [0]
    assert best(torch.ones(4), counts, 2, limit=0).tolist() == [0, 1]  # alike: the older ones


def test_choices_are_counted_and_forgotten_with_the_shot():
    run, cache = started(DeepForcing(1, 3, 1, 4), 4)
    forward_of(run, cache, 4, 1.0)
    assert run.choices.tolist() == [[1] * 6] * 2
    run.begin_shot(cache, Chunk(5, 5, 1))
    assert run.choices.tolist() == [[0] * 6] * 2 and not len(run.queries[0])


def test_a_forward_beside_a_steps_own_is_not_remembered():
    """Skip Layer Guidance runs the model once more in a step."""
    policy, geometry, chunk = KVPolicy(DeepForcing()), fake.geometry(3), Chunk(0, 0, 3)
    session = Session(policy, geometry, TAKE, torch.float64, torch.device("cpu"))
    session.stream("a")
    session.begin(Forward.of(chunk))
    sums = []
    for number, is_extra in enumerate([(), [True], [False]], 1):
        sides = [torch.full((1, 18, 2, 8), float(number), dtype=torch.float64)] * 3
        session.attend(Forward.of(chunk), ["a"], 0, *sides, fake.attention, is_extra)
        sums.append(session.stream("a").retention.queries[0][:, 0, 0].tolist())
    assert sums == [[6.0] * 3, [6.0] * 3, [6.0, 18.0, 18.0, 18.0]]
    assert session.stream("a").caches[HISTORY].banks[0].length == 18


def test_a_window_as_long_as_the_take_equals_keeping_everything():
    full, *_ = fake.take(KVPolicy())
    assert torch.equal(full, fake.take(KVPolicy(DeepForcing()))[0])


@pytest.mark.parametrize(
    "parameters, sentence",
    [
        (dict(budget_frames=13), "use budget_frames of at least 14"),
        (dict(window_frames=15), "at most window_frames"),
        (dict(recent_frames=0), "recent_frames is 0. Use at least 1"),
        (dict(reuse_limit=-1), "reuse_limit is -1. Use at least 0"),
    ],
)
def test_wrong_numbers_are_refused(parameters, sentence):
    with pytest.raises(ValueError, match=sentence):
        DeepForcing(**parameters)


@pytest.mark.parametrize(
    "policy, chunk_frames, sentence",
    [
        (KVPolicy(DeepForcing()), 5, "Use recent_frames of at least 5"),
        (KVPolicy(DeepForcing(), DirectedForcing()), 3, "keeps other tokens in each layer"),
        (KVPolicy(DeepForcing(), storage=KVStorage("int8", 2, 10)), 3, "in each layer.*KV Storage"),
    ],
)
def test_what_does_not_go_together_is_refused(policy, chunk_frames, sentence):
    with pytest.raises(ValueError, match=sentence):
        policy.check(fake.geometry(chunk_frames), TAKE)
