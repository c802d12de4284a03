"""Host tests run as ComfyUI runs its nodes: without gradients."""

import pytest
import torch


@pytest.fixture(scope="module")
def model():
    """A tiny MODEL of two layers, as the host's loader gives it; made once for each file."""
    from support import tiny  # imports ComfyUI

    return tiny.tiny_model(layers=2)


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


@pytest.fixture
def plans(monkeypatch):
    """The plans of the takes that are made, in a list that grows."""
    from keepsake.host.take import outer_call

    plans, plan_take = [], outer_call.plan_take

    def record(*args):
        plans.append(plan_take(*args))
        return plans[-1]

    monkeypatch.setattr(outer_call, "plan_take", record)
    return plans


@pytest.fixture
def counts(monkeypatch):
    """How many plans and dry runs there were; every plan begins with `check_call`."""
    from keepsake.host.take import planning
    from keepsake.rollout.dry_run import DryRun

    seen = {"plans": 0, "dry runs": 0}

    def count(owner, name, what):
        real = getattr(owner, name)

        def counting(*args, **kwargs):
            seen[what] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, counting)

    count(planning, "check_call", "plans")
    count(DryRun, "__iter__", "dry runs")
    return seen
