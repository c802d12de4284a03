"""Progress and previews of a take, by the host's callback."""

import logging

from torch import Tensor

from ...kv_policies import Chunk


class Progress:
    """Counts given chunks, and chunks x steps of new ones, for the host's callback. A preview that
    fails never ends a run.

    The host's preview is of the first frame that it gets, so it gets the newest finished chunk,
    step by step from a later frame on: the picture moves through the take. Reports before one is
    finished, and the last of all, have the prediction x0 itself.
    """

    def __init__(self, callback, steps: int, total: int):
        """`total` reports are expected; `steps` of them for each new chunk."""
        self.callback = callback
        self.steps = steps
        self.total = total
        self.reports = 0
        self.finished: Tensor | None = None  # the newest finished chunk, [1, C, F, 2h, 2w]
        self.finished_at = 0  # number of reports before it was finished

    def play(self, latents: Tensor):
        """Show a finished chunk from now on."""
        self.finished = latents
        self.finished_at = self.reports

    def __call__(self, chunk: Chunk, step: int, x0: Tensor, x: Tensor):
        if self.callback is None:
            return
        try:
            self.callback(self.reports, self._preview(x0), x, self.total)
        except Exception:  # an interrupt is a BaseException and passes
            logging.warning(
                "Keepsake: the preview failed and is off for the rest of this take.", exc_info=True
            )
            self.callback = None
        self.reports += 1

    def _preview(self, x0: Tensor) -> Tensor:
        if self.finished is None or self.reports == self.total - 1:
            return x0
        frames = self.finished.shape[2]
        frame = (self.reports - self.finished_at) * frames // self.steps
        return self.finished[:, :, min(frame, frames - 1) :]
