"""Behind the host's ModelComputeDtype node, keys and values have that dtype: in the plan, in a
saved memory and in the cache.
"""

import pytest
import torch
from comfy_extras.nodes_model_advanced import ModelComputeDtype
from keepsake.host.budget.of_inputs import budget_of_inputs
from keepsake.host.budget.report import budget_dict
from keepsake.host.take.take import sample_take
from keepsake.kv_policies import FlashForward, KVMemoryError, KVPolicy
from support import tiny

FRAMES = 9


def fresh(weights, computes):
    """A MODEL that was never loaded and computes in its weights' dtype, behind the host's node with
    the choice `computes`.
    """
    model = tiny.prepared(tiny.tiny_model(layers=2, weights=weights))
    model.model.manual_cast_dtype = None  # on a CPU the loader would let bf16 compute in fp32
    return ModelComputeDtype().patch(model, computes)[0]


def make(model, **options):
    return sample_take(
        model,
        tiny.prompt(1),
        None,
        1.0,
        {"samples": torch.zeros(1, 16, FRAMES, 4, 6)},
        seed=11,
        steps=2,
        chunk_frames=2,
        **options,
    )


@pytest.mark.parametrize(
    "weights, computes, dtype",
    [
        (torch.float32, "bf16", "bfloat16"),
        (torch.bfloat16, "fp32", "float32"),
        (torch.bfloat16, "default", "bfloat16"),
    ],
)
class TestBehindTheNode:
    def test_planned_bytes_are_those_that_are_allocated(self, weights, computes, dtype):
        # 9 frames of 2x3 tokens, K and V, 2 layers, 4 heads of 16 channels
        expected = FRAMES * 6 * 2 * 2 * 64 * getattr(torch, dtype).itemsize
        _, stats = make(fresh(weights, computes))
        assert stats.dtype == dtype
        assert stats.planned_bytes == (expected, expected)
        assert stats.peak_cache_bytes == expected

    def test_the_estimate_node_says_the_same(self, weights, computes, dtype):
        ahead = budget_of_inputs(
            fresh(weights, computes),
            {"samples": torch.zeros(1, 16, FRAMES, 4, 6)},
            steps=2,
            cfg=1.0,
            chunk_frames=2,
            policy=None,
            prefix=None,
            prompts=1,
        )
        _, stats = make(fresh(weights, computes))
        assert budget_dict(ahead)["dtype"] == dtype
        assert ahead.estimate.allocated == stats.planned_bytes

    def test_a_memory_resumes_on_a_fresh_model(self, weights, computes, dtype):
        memories = []
        whole, _ = make(fresh(weights, computes))
        make(fresh(weights, computes), stop_after=5, on_memory=memories.append)
        rest, _ = make(fresh(weights, computes), memory=memories[0])
        assert torch.equal(rest["samples"], whole["samples"])
        assert memories[0].about["dtype"] == dtype


def test_a_memory_of_another_dtype_is_refused():
    memories = []
    make(fresh(torch.float32, "bf16"), stop_after=5, on_memory=memories.append)
    with pytest.raises(KVMemoryError, match="in bfloat16, and this take has float32. Load the"):
        make(fresh(torch.float32, "fp32"), memory=memories[0])


def test_a_role_that_computes_in_another_dtype_is_refused():
    planner = fresh(torch.float32, "bf16")
    policy = KVPolicy(schedule=FlashForward(anchor_stride=4), models={"planner": planner})
    with pytest.raises(ValueError, match="dtype torch.bfloat16, the sampler's model torch.float32"):
        make(fresh(torch.float32, "default"), policy=policy)
