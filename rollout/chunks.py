"""A take as chunks, and which of them a run makes."""

from collections.abc import Sequence

from ..kv_policies import Chunk


def plan_chunks(
    total_frames: int, chunk_frames: int, given_frames: int = 0, finished: Sequence[Chunk] = ()
) -> list[Chunk]:
    """Cut a take into chunks: first the given frames, then the rest; the last chunk of either part
    may be short.

    `finished`: the chunks of an earlier run, which stay as they are.
    """
    if chunk_frames < 1:
        raise ValueError(
            f"chunk_frames is {chunk_frames}. Use at least 1 latent frame, or 0 on a node for the "
            "model's profile."
        )
    chunks = list(finished)
    done = chunks[-1].end_frame if chunks else 0
    first_new = max(done, given_frames)
    for first, end, given in ((done, given_frames, True), (first_new, total_frames, False)):
        for start in range(first, end, chunk_frames):
            chunks.append(Chunk(len(chunks), start, min(chunk_frames, end - start), given))
    return chunks


def plan_piece(chunks: Sequence[Chunk], finished: int, stop_after: int) -> range:
    """Numbers of the chunks that a run makes, behind the `finished` first ones: up to the one that
    reaches `stop_after` latent frames; 0: to the end.
    """
    if not stop_after:
        return range(finished, len(chunks))
    reaching = (chunk.index + 1 for chunk in chunks if chunk.end_frame >= stop_after)
    return range(finished, next(reaching, len(chunks)))


def in_pieces(piece: range, chunks: int) -> list[range]:
    """The numbers of chunks in pieces of so many; 0: in one."""
    if not chunks:
        return [piece]
    return [piece[first : first + chunks] for first in range(0, len(piece), chunks)]
