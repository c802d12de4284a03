"""Running finished chunks again under another prompt, so that the cache is that of the new prompt
(LongLive, arXiv 2509.22622).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..kv_policies import HISTORY, Bank, Chunk, Forward
from .session import Session


def planned_reruns(chunks: list[Chunk], sink: int) -> dict[int, list[Chunk]]:
    """By index of a chunk with which prompts come in by "recache": its shot's chunks that lie
    wholly in the latest `recache_frames`, past the first `sink` frames of the shot.
    """
    reruns = {}
    for chunk in chunks:
        switch = chunk.cue.switch
        if switch and switch.mode == "recache":
            oldest = chunk.start_frame - switch.recache_frames
            reruns[chunk.index] = [
                old
                for old in chunks[: chunk.index]
                if old.cue.shot == chunk.cue.shot
                and old.start_frame - old.cue.shot >= sink
                and old.start_frame >= oldest
            ]
    return reruns


def recache(
    session: Session, candidates: list[Chunk], write: Callable[[Chunk, Tensor], None]
) -> range:
    """Run the candidates again, in order, each at its own place in time. Returns the latent frames
    that were.

    Works for every retention: of each chunk that is run again, the tokens that were kept before
    stay. Chunks before the first one that is still kept, unmoved, are left out: they are gone, or
    stand elsewhere in time. `write(chunk, x0)` runs a clean pass under the new prompts and commits
    it.
    """
    banks = [bank for stream in session.streams.values() for bank in stream.caches[HISTORY].banks]

    # 1. From the first candidate on that is still in place.
    in_place = [i for i, old in enumerate(candidates) if _is_in_place(old, banks)]
    if not in_place:
        return range(0)
    again = candidates[in_place[0] :]

    # 2. Forget all of them, and remember which tokens were kept.
    start = again[0].start_frame
    kept = [bank.rewind(start) for bank in banks]

    # 3. Write each anew, and keep the same tokens of it.
    for old in again:
        session.begin_again(Forward.of(old))
        write(old, session.latents[old.index])
        for bank, token_ids in zip(banks, kept):
            is_older = bank.frame[: bank.length] < start
            is_kept = torch.isin(bank.token_ids(), token_ids)
            bank.keep((is_older | is_kept).nonzero()[:, 0])
    return range(start, again[-1].end_frame)


def _is_in_place(chunk: Chunk, banks: list[Bank]) -> bool:
    """Whether tokens of a chunk are kept in any bank, and in every bank stand at their own time."""
    rows = [(bank, bank.rows_of(chunk.start_frame, chunk.end_frame - 1)) for bank in banks]
    is_kept = any(r.stop > r.start for _, r in rows)
    return is_kept and all(
        torch.equal(bank.position[r], bank.frame[r].double()) for bank, r in rows
    )
