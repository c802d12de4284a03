"""A context that costs nothing: given chunks whose keys and values are random numbers under the
right token names.
"""

from dataclasses import dataclass

import torch
from keepsake.kv_policies import HISTORY, Bank, CleanPass
from keepsake.rollout.rollout import Model


def fill_with_noise(bank: Bank, dtype: torch.dtype):
    """Random keys and values into the rows that the last `begin` made room for."""
    rows = bank.length - bank.committed
    for layer, heads in enumerate(bank.heads):
        k, v = torch.randn(2, 1, rows, len(heads), bank.geometry.head_dim).to(dtype)
        bank.write(layer, k, v)


@dataclass(frozen=True)
class FilledContext(CleanPass):
    """The clean-pass loop, in which a given chunk's forwards are left out and its probe predicts
    nothing.
    """

    def run(self, stage):
        real, session = stage.model, stage.session

        def write(forward, x, sigma):
            if not forward.chunk.given or not session.streams:  # the first forward makes streams
                return real.write(forward, x, sigma)
            for stream in session.streams.values():
                stream.forwards[HISTORY] += 1
                for bank in stream.caches[HISTORY].banks:
                    fill_with_noise(bank, session.dtype)

        stage.model = Model(
            lambda forward, x, sigma: x if forward.chunk.given else real.predict(forward, x, sigma),
            write,
            real.noise,
        )
        yield from super().run(stage)
