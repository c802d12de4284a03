"""Running finished chunks again under another prompt, so that the cache is that of the new prompt
(LongLive, arXiv 2509.22622): chunk by chunk, or all together in one forward.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..kv_policies import HISTORY, Bank, Chunk, Forward, Span
from .rerun import Rerun
from .session import Session

Run = Callable[[Forward, Tensor], None]  # a forward for the cache alone, under the new prompts


def planned_reruns(chunks: list[Chunk], sink: int) -> dict[int, list[Chunk]]:
    """By index of a chunk with which prompts come in by "recache": its shot's chunks that lie
    wholly in the latest `recache_frames`, past the first `sink` frames of the shot. Chunks that are
    run together include the sink, where the latest frames reach back to the shot's first one.
    """
    reruns = {}
    for chunk in chunks:
        switch = chunk.cue.switch
        if switch and switch.mode == "recache":
            oldest = chunk.start_frame - switch.recache_frames
            with_sink = switch.together and oldest <= chunk.cue.shot
            reruns[chunk.index] = [
                old
                for old in chunks[: chunk.index]
                if old.cue.shot == chunk.cue.shot
                and (with_sink or old.start_frame - old.cue.shot >= sink)
                and old.start_frame >= oldest
            ]
    return reruns


def frames_together(chunks: list[Chunk], sink: int) -> int:
    """Latent frames of the largest forward that runs finished chunks again; 0: none does."""
    reruns = planned_reruns(chunks, sink)
    return max(
        (
            sum(chunk.frames for chunk in again)
            for index, again in reruns.items()
            if chunks[index].cue.switch.together
        ),
        default=0,
    )


def recache(session: Session, candidates: list[Chunk], run: Run, together: bool = False) -> range:
    """Run the candidates again, each at its own place in time: in order, or `together` in one
    forward. Returns the latent frames that were.

    Works for every retention: of each chunk that is run again, the tokens that were kept before
    stay. Chunks before the first one that is still kept, unmoved, are left out: they are gone,
    stand elsewhere in time, or each layer has its own tokens of them.
    """
    banks = [bank for stream in session.streams.values() for bank in stream.caches[HISTORY].banks]

    # 1. What a retention says that keeps little, but runs all of them together.
    frames = range(candidates[0].start_frame, candidates[-1].end_frame) if candidates else range(0)
    if together and candidates:
        asked = [
            stream.retention.begin_recache(stream.caches[HISTORY], frames)
            for stream in session.streams.values()
        ]
        # Streams run the same policy, so all say so or none.
        if asked[0] is not None:
            _write_again(session, candidates, banks, sum(asked, []), run, together, reads_all=True)
            return frames

    # 2. Else from the first candidate on that is still in place.
    in_place = [i for i, old in enumerate(candidates) if _is_in_place(old, banks)]
    if not in_place:
        return range(0)
    again = candidates[in_place[0] :]

    # 3. Forget all of them, and keep the same tokens of what is written anew.
    start = again[0].start_frame
    kept = [bank.rewind(start) for bank in banks]
    _write_again(session, again, banks, kept, run, together)
    return range(start, again[-1].end_frame)


def _write_again(
    session: Session,
    again: list[Chunk],
    banks: list[Bank],
    kept: list[Tensor],
    run: Run,
    together: bool,
    reads_all: bool = False,
):
    """Write each chunk anew, and keep these tokens of it, ids by bank."""
    by_bank = dict(zip(banks, kept))
    older = [bank.committed for bank in banks]
    rerun = _run_together(session, again, by_bank, run, reads_all) if together else None
    for old in again:
        before = session.forward_counts()
        session.begin_again(Forward.of(old))
        if rerun:
            before = rerun.forwards_before
            rerun.write(old.span)
        else:
            run(Forward.of(old), session.latents[old.index])
        session.commit(HISTORY, before)
        for bank, token_ids, rows in zip(banks, kept, older):
            is_kept = torch.isin(bank.token_ids(rows), token_ids)
            bank.keep(rows + is_kept.nonzero()[:, 0], first_kept=rows)


def _run_together(
    session: Session, again: list[Chunk], kept: dict[Bank, Tensor], run: Run, reads_all: bool
) -> Rerun:
    """One forward of all chunks. Their tokens that were kept read each other and what lies before
    them; their keys and values wait to be written chunk by chunk, since a cache may have room for
    no more than one chunk in work.
    """
    numbers = range(again[0].start_frame, again[-1].end_frame)
    forward = replace(Forward.of(again[0]), span=Span.of_frames(numbers))
    x0 = torch.cat([session.latents[old.index] for old in again], 2)
    before = session.forward_counts()
    session.rerun = rerun = Rerun(numbers.start, kept, before, reads_all)
    try:
        run(forward, x0)
    finally:
        session.rerun = None
    return rerun


def _is_in_place(chunk: Chunk, banks: list[Bank]) -> bool:
    """Whether tokens of a chunk are kept in any bank, and in every bank stand at their own time.
    From there on all layers must hold the same rows, and none that is merged, which running chunks
    again would undo.
    """
    rows = [(bank, bank.rows_of(chunk.start_frame, chunk.end_frame - 1)) for bank in banks]
    is_kept = any(r.stop > r.start for _, r in rows)
    return is_kept and all(
        bank.columns.are_alike(slice(r.start, bank.committed))
        and bool((bank.frame[..., : r.start] < chunk.start_frame).all())
        and torch.equal(bank.position[..., r], bank.frame[..., r].double())
        and bank.stand_for_themselves(slice(r.start, bank.length))
        for bank, r in rows
    )
