"""The budget of a small take, from the inputs of the estimate node."""

from keepsake.host.budget.of_inputs import budget_of_inputs
from support import tiny


def budget(policy, noise, prefix=None, cfg=1.0, **more):
    return budget_of_inputs(
        tiny.prepared(tiny.tiny_model()),
        {"samples": noise},
        steps=2,
        cfg=cfg,
        chunk_frames=2,
        policy=policy,
        prefix=None if prefix is None else {"samples": prefix},
        prompts=1,
        **more,
    )
