"""How a take is made: chunk after chunk, as its schedule says, and nothing of it stays behind."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

from torch import Tensor

from ..kv_policies import Chunk
from .rollout import Rollout
from .session import Session
from .trace import Trace


class FinishedChunk(NamedTuple):
    chunk: Chunk
    latents: Tensor  # [1, C, F, 2h, 2w], normalised


def run(
    rollout: Rollout, session: Session, trace: Trace, on_pause: Callable[[], None] = lambda: None
) -> Iterator[FinishedChunk]:
    """Yield each chunk when it is finished; after each of the rollout's pieces `on_pause` may save.
    Whatever ends the run, no tensor of it stays.
    """
    try:
        for piece in rollout.pieces:
            rollout.piece = piece
            with closing(session.policy.schedule.take(rollout)) as take:
                for chunk, latents in take:
                    trace.finish(chunk)
                    yield FinishedChunk(chunk, latents)
            on_pause()
        trace.conclude(session)
    finally:
        session.close()
