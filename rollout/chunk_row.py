"""What one finished chunk held and cost."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ChunkRow:
    """One finished chunk. Tokens are summed over layers, heads and streams; bytes over streams."""

    item: int  # which of the batch
    index: int
    start_frame: int
    frames: int
    given: bool
    kept_tokens: int  # history that the chunk could read
    full_tokens: int  # history that FullKV would hold
    bank_tokens: tuple[
        int, ...
    ]  # history rows of each bank, first stream; `KVStats.bank_names` names them
    bank_bytes: tuple[int, ...]  # their keys and values
    allocated_bytes: int  # the buffers that hold them
    # of all work on this chunk, wherever it ran, and on anchors that it was the first to wait for
    seconds: float
    seconds_by_phase: dict[str, float]  # denoise, probe, clean, recache, policy
    host_bytes: int = (
        0  # of the buffers, those in main memory by choice (KV Storage), whatever the device
    )
    reads: tuple[
        float, ...
    ] = ()  # of each earlier latent frame, see `SelectionRun.reads`; empty: all that is kept, or a given chunk
