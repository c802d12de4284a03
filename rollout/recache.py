"""Running finished chunks again under another prompt, so that the memory speaks of it (LongLive,
arXiv 2509.22622).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..kv_policies import HISTORY, Chunk
from .session import Session


def planned_reruns(chunks: list[Chunk], sink: int) -> dict[int, list[Chunk]]:
    """By index of a chunk that prompts come in with by "recache": its shot's chunks that lie wholly
    in the latest frames, past the `sink`.
    """
    return {
        chunk.index: [
            old
            for old in chunks[: chunk.index]
            if old.shot == chunk.shot
            and old.start_frame - old.shot >= sink
            and old.start_frame >= chunk.start_frame - chunk.switch.recache_frames
        ]
        for chunk in chunks
        if chunk.switch and chunk.switch.mode == "recache"
    }


def recache(
    session: Session, chunk: Chunk, candidates: list[Chunk], write: Callable[[Chunk, Tensor], None]
) -> range:
    """Run the candidates again, in order, each at its own place in time, under the prompts of
    `chunk`. Returns the latent frames that were.

    Works for every retention: of each chunk that was run again, those tokens stay that stood
    before, by their names. Chunks before the first one that still stands, unmoved, in any bank are
    left out: they are gone, or stand elsewhere in time. `write(chunk, x0)` runs a clean pass and
    commits it.
    """
    banks = [bank for stream in session.streams.values() for bank in stream.caches[HISTORY].banks]

    def stands(old: Chunk) -> bool:
        rows = [(bank, bank.rows_of(old.start_frame, old.end_frame - 1)) for bank in banks]
        return any(r.stop > r.start for _, r in rows) and all(
            torch.equal(bank.position[r], bank.frame[r].double()) for bank, r in rows
        )

    first = next((i for i, old in enumerate(candidates) if stands(old)), len(candidates))
    again = candidates[first:]
    if not again:
        return range(0)
    start = again[0].start_frame
    stood = [bank.rewind(start) for bank in banks]
    for old in again:
        session.open[HISTORY] = old  # once more; policies take no part
        for stream in session.streams.values():
            stream.caches[HISTORY].reserve(old)
        write(old.under(chunk), session.latents[old.index])
        for bank, names in zip(banks, stood):
            bank.keep(
                (
                    (bank.frame[: bank.length] < start) | torch.isin(bank.token_ids(), names)
                ).nonzero()[:, 0]
            )
    return range(start, again[-1].end_frame)
