"""Rows of a model's action modules (Matrix-Game 2, arXiv 2508.13009), which attend in time at each
place: keys and values of the latest latent frames, whatever a policy keeps of the video.
"""

import torch
from torch import Tensor

from ..state import State, counts_of, damaged, part_of, tensor_of
from ..take import ActionPlan, Span

MOST_FRAMES = 2**31


class ActionRows:
    """Keys and values `[places, frames, heads, head_dim]` for each layer and part of a plan. The
    last frames are those of the chunk in work, which each of its forwards overwrites.

    With the chunk they are at most `window_frames` latent frames; older ones leave when the next
    chunk begins. Without a plan there are none, and every call does nothing.
    """

    def __init__(self, plan: ActionPlan | None, dtype: torch.dtype, device: torch.device):
        self.plan = plan or ActionPlan()
        self.frames: list[int] = []  # latent frame of each row
        self.committed = 0  # of these, those that are history
        size = self.plan.window_frames, self.plan.heads, self.plan.head_dim
        self._sides = {
            (layer, part): tuple(
                torch.zeros(places, *size, dtype=dtype, device=device) for _ in range(2)
            )
            for layer in self.plan.layers
            for part, places in self.plan.places.items()
        }

    def reserve(self, span: Span):
        """Append the frames of a span; history that has no room beside them leaves."""
        if not self._sides:
            return
        room = self.plan.window_frames - len(span)
        if room < 0:
            raise RuntimeError(
                f"Action rows for {self.plan.window_frames} latent frames were asked to hold "
                f"{len(span)} of one forward."
            )
        self._drop(max(0, self.committed - room))
        self.frames += span.numbers

    def _drop(self, count: int):
        """Drop the first frames of the history; the others move to the front one by one, so that
        nothing is held twice.
        """
        if not count:
            return
        for sides in self._sides.values():
            for side in sides:
                for frame in range(count, self.committed):
                    side[:, frame - count] = side[:, frame]
        self.committed -= count
        self.frames = self.frames[count : count + self.committed]

    def write(self, layer: int, part: str, k: Tensor, v: Tensor):
        """Overwrite the frames of the chunk in work, `[places, F, heads, head_dim]` each."""
        for side, values in zip(self._sides[layer, part], (k, v)):
            side[:, self.committed : len(self.frames)] = values

    def read(self, layer: int, part: str) -> tuple[Tensor, Tensor]:
        """Keys and values of all frames, those of the chunk in work last."""
        k, v = self._sides[layer, part]
        return k[:, : len(self.frames)], v[:, : len(self.frames)]

    def read_with(self, layer: int, part: str, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the history, and behind them those of a chunk that is not written."""
        history = (side[:, : self.committed] for side in self._sides[layer, part])
        return tuple(torch.cat(pair, 1) for pair in zip(history, (k, v)))

    def commit(self):
        """The frames of the chunk in work become history."""
        self.committed = len(self.frames)

    def discard(self):
        """Give up the frames of the chunk in work."""
        del self.frames[self.committed :]

    def clear(self):
        """Forget all frames; the buffers stay."""
        self.frames.clear()
        self.committed = 0

    def forget(self, before_frame: int):
        """Drop history of earlier latent frames."""
        self._drop(sum(frame < before_frame for frame in self.frames[: self.committed]))

    def state(self) -> State:
        """The history, copied to the CPU; empty without a plan."""
        if not self._sides:
            return {}
        return {
            "frames": self.frames[: self.committed],
            **{
                f"layer {layer} {part}": {
                    side: tensor[:, : self.committed].to("cpu", copy=True)
                    for side, tensor in zip("kv", sides)
                }
                for (layer, part), sides in self._sides.items()
            },
        }

    def restore(self, state: State):
        """Begin with the history that `state` gave; KVMemoryError where it does not fit."""
        if not self._sides:
            return
        frames = counts_of(state, "frames", MOST_FRAMES)
        if len(frames) > self.plan.window_frames:
            raise damaged(
                f"its action rows hold {len(frames)} latent frames and at most "
                f"{self.plan.window_frames} fit"
            )
        for (layer, part), sides in self._sides.items():
            saved = part_of(state, f"layer {layer} {part}", dict)
            for name, side in zip("kv", sides):
                places, _, heads, head_dim = side.shape
                values = tensor_of(saved, name, side.dtype, places, len(frames), heads, head_dim)
                side[:, : len(frames)] = values
        self.frames = frames
        self.committed = len(frames)

    def free(self):
        """Drop every buffer now."""
        self._sides.clear()
        self.clear()

    def nbytes(self) -> int:
        return sum(side.nbytes for sides in self._sides.values() for side in sides)
