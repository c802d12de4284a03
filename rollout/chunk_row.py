"""What one finished chunk held and cost."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ChunkRow:
    """One finished chunk. Tokens are summed over layers, heads and streams; bytes over streams."""

    item: int  # number of the take in the batch
    index: int
    start_frame: int
    frames: int
    given: bool
    kept_tokens: int  # history that the chunk could read
    full_tokens: int  # history that FullKV would hold
    # History rows of each bank, of the first stream; `KVStats.bank_names` names the banks.
    bank_tokens: tuple[int, ...]
    bank_bytes: tuple[int, ...]  # their keys and values
    allocated_bytes: int  # the buffers that hold them
    # Of all work on this chunk, wherever it ran, and on anchors that it was the first to wait for.
    seconds: float
    # denoise, probe, clean, recache, policy; with a stream also video (decode and write) and save
    seconds_by_phase: dict[str, float]
    # Of the buffers, those that are in main memory by choice (KV Storage), whatever the device. The
    # name is a key of the stats' JSON; elsewhere in the code "host" is ComfyUI.
    host_bytes: int = 0
    # Outputs of modules that were held for later steps, at most; the steps that were forecast from
    # them (`Schedule.forecast_steps`), counted from 0.
    feature_bytes: int = 0
    forecast_steps: tuple[int, ...] = ()
    # Of the buffers, those of a world model's action modules, which no policy changes.
    action_bytes: int = 0
    # By earlier latent frame, see `SelectionRun.reads`. Empty: the chunk was given, or read all
    # that is kept.
    reads: tuple[float, ...] = ()
