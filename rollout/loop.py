"""How a take is made: chunk after chunk, as its schedule says, and nothing of it stays behind."""

from collections.abc import Callable, Iterator
from contextlib import closing

from torch import Tensor

from ..kv_policies import Chunk
from .rollout import Rollout


def run(
    rollout: Rollout, on_pause: Callable[[], None] = lambda: None
) -> Iterator[tuple[Chunk, Tensor]]:
    """Yield each chunk when it is finished, with its latents `[1, C, F, 2h, 2w]`, normalised; after
    each of the rollout's pieces `on_pause` may save. Whatever ends the run, no tensor of it stays.
    """
    session, trace = rollout.session, rollout.trace
    try:
        for piece in rollout.pieces:
            rollout.piece = piece
            with closing(session.policy.schedule.run(rollout)) as chunks:
                for chunk, latents in chunks:
                    trace.finish(chunk)
                    yield chunk, latents
            on_pause()
        trace.conclude(session)
    finally:
        session.close()
