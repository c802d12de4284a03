"""What one chunk of a take needs, in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from .chunk_row import ChunkRow


@dataclass(frozen=True)
class ChunkBytes:
    """Bytes in use while one chunk is made."""

    row: ChunkRow  # the same that the trace of a real run has, without the seconds
    # Temporary copies where the history lies: rows that move, or several caches read together;
    # the most up to this chunk.
    copied_bytes: int
    latent_bytes: int  # of the latents of the whole take

    @property
    def device_copied_bytes(self) -> int:
        return 0 if self.row.host_bytes else self.copied_bytes

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return (
            self.row.allocated_bytes
            - self.row.host_bytes
            + self.device_copied_bytes
            + self.row.feature_bytes
            + self.latent_bytes
        )

    @property
    def main_bytes(self) -> int:
        """Bytes in main memory, where KV Storage puts the history there."""
        return self.row.host_bytes + self.copied_bytes - self.device_copied_bytes
