"""The modules of a Wan block whose outputs a schedule holds at one step of a chunk and forecasts at
a later one (TaylorSeer).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import comfy.model_management
import torch
from torch import Tensor

from ...kv_policies import MODULES
from .attention import outside_malloc_graph
from .forward_context import ForwardContext


class FeatureTap:
    """A module's forward whose output goes to the session, or comes from there in its place."""

    def __init__(self, run: ForwardContext, module: tuple[int, str], original: Callable):
        """`module`: the layer's number and the module's name."""
        self.run, self.module, self.original = run, module, original

    def __call__(self, x, *args, **kwargs):
        out = _forecast(self, x)
        if out is None:
            out = self.original(x, *args, **kwargs)
            _hold(self, out)
        return out


# Not compiled, for the reasons given in attention.py.


@torch.compiler.disable
def _forecast(tap: FeatureTap, x: Tensor) -> Tensor | None:
    """The module's output where it is forecast, `[B, N, C]`; else None."""
    run = tap.run
    if not run.session.can_forecast(run.forward, run.streams, tap.module):
        return None
    comfy.model_management.throw_exception_if_processing_interrupted()
    run.require_all_rows(x, tap.module[0])
    if tap.module == (0, MODULES[0]):
        run.session.count_forecast(run.forward, run.streams)
    with outside_malloc_graph():  # which records what a computed forward allocates
        return run.session.forecast_output(run.forward, run.streams, tap.module)


@torch.compiler.disable
def _hold(tap: FeatureTap, out: Tensor):
    run = tap.run
    run.require_all_rows(out, tap.module[0])
    with outside_malloc_graph():
        run.session.hold_output(run.forward, run.streams, tap.module, out)


@contextmanager
def tapped(backbone, run: ForwardContext) -> Iterator[None]:
    """While one forward runs, tap the modules of every block. They are taken as they are then, with
    the patches of any node on them.
    """
    before = []  # modules, and the forward that was set on each; None: its class's own
    try:
        for layer, block in enumerate(backbone.blocks):
            for name in MODULES:
                module = getattr(block, name)
                before.append((module, vars(module).get("forward")))
                module.forward = FeatureTap(run, (layer, name), module.forward)
        yield
    finally:
        for module, forward in before:
            if forward is None:
                del module.forward
            else:
                module.forward = forward
