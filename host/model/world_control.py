"""What a model follows that walks through a world: a camera, or keys."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class WorldControl:
    """A value for each latent frame of a take. It travels as one more conditioning value, of which
    each chunk gets its frames.
    """

    name: str  # of the conditioning value, see `kinds.Kind.control`
    values: Tensor  # [1, K, T, 1, 1], fp32
    # By what translations were divided; a take that goes on needs the same. None: nothing was.
    scale: float | None = None
    poses: Tensor | None = None  # camera to world at each latent frame, [T, 4, 4]

    def __repr__(self) -> str:
        """Short: where a node fails, the host sends all its inputs to the page in one message."""
        return f"<{self.name} of {self.values.shape[2]} latent frames>"


@dataclass(frozen=True, kw_only=True, eq=False)
class CameraInput:
    """A camera for a model that follows it on the host's concat input."""

    values: Tensor  # [B, K, T, 2h, 2w], fp32
    poses: Tensor  # camera to world at each latent frame, fp32 [T, 4, 4]

    def __repr__(self) -> str:
        return f"<camera of {self.values.shape[2]} latent frames>"
