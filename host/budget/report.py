"""A budget in words, and as plain values for JSON."""

from __future__ import annotations

import json

from ...rollout.chunk_bytes import ChunkBytes
from ...rollout.estimate import Estimate
from ...rollout.stats import counted
from ...rollout.timeline import pixel_frames
from .budget import LENGTH_LIMIT, Budget

PLACES = {
    "free": "in what is free, beside the weights",
    "total": "on the whole device, with all weights offloaded",
}


def size(nbytes: int) -> str:
    return f"{nbytes / 2**30:,.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:,.1f} MiB"


def size_range(sizes: tuple[int, int], expected: int | None = None) -> str:
    """At least and at most in words, and what is expected, if that is known."""
    least, most = sizes
    if least == most:
        return size(least)
    text = f"{size(least)} to {size(most)}"
    return text if expected is None else f"{text} (expected {size(expected)})"


def budget_line(budget: Budget) -> str:
    """The plan of a take in one line."""
    plan = budget.plan
    estimate = budget.estimate
    expected = budget.expected
    finished = len(plan.finished_chunks)
    made_before = f" ({finished} made before)" if finished else ""
    allocated = size_range(estimate.allocated, expected and expected.allocated)
    in_main_memory = ""
    if estimate.main[1]:
        in_main_memory = (
            f", {size_range(estimate.main)} of it in main memory, which has "
            f"{size(budget.main_bytes)} free; on the device"
        )
    return (
        f"{counted(plan.take.total_frames, 'latent frame')} in "
        f"{counted(len(plan.chunks), 'chunk')}{made_before}, "
        f"{counted(plan.streams, 'prompt stream')}: the KV cache takes {allocated}"
        f"{in_main_memory}, with copies, latents and a chunk's activations "
        f"{size_range(budget.needed, expected and expected.needed)}; the device has "
        f"{size(budget.free_bytes)} free of {size(budget.total_bytes)}, and "
        f"{size(budget.weight_bytes)} of weights are to be loaded"
    )


def budget_report(budget: Budget) -> str:
    """The budget in words, for a node or a terminal."""
    plan = budget.plan
    estimate = budget.estimate
    lines = [budget_line(budget), _peak_line(budget)]
    lanes = ", ".join(f"{name} {size(nbytes)}" for name, nbytes in estimate.lane_bytes.items())
    lines.append(f"buffers by memory - {lanes}")
    last = estimate.least[-1].row
    banks = ", ".join(
        f"{name} {size(nbytes)}" for name, nbytes in zip(estimate.bank_names, last.bank_bytes)
    )
    lines.append(f"history at the last chunk - {banks}")
    if features := _feature_bytes(estimate):
        lines.append(
            f"for the steps that are forecast - {size(features)} of outputs, held while a chunk is "
            "made"
        )
    if last.action_bytes:
        lines.append(
            f"keys and mouse - {size(last.action_bytes)} for the latest "
            f"{plan.geometry.actions.window_frames} latent frames, whatever the policy keeps"
        )
    if estimate.least is not estimate.most:
        share = ""
        if budget.expected:
            share = f"; {plan.share:.1%} of it is expected to stay, as in the earlier take"
        cases = plan.policy.retention.open_share
        lines.append(f"what stays depends on the picture: {cases}{share}")
    lines.append(f"this take {_verdict(budget)}")
    for where, (surely, at_best) in budget.longest.items():
        if where == "free" or budget.offloads:
            expected = budget.expected_longest and budget.expected_longest[where]
            length = _length(budget, surely, at_best, expected)
            lines.append(f"longest take {PLACES[where]} - {length}")
    return "\n".join(lines)


def _feature_bytes(estimate: Estimate) -> int:
    return max(chunk.row.feature_bytes for chunk in estimate.least)


def _peak_line(budget: Budget) -> str:
    most = budget.estimate.most
    latents = budget.plan.latent_bytes
    features = _feature_bytes(budget.estimate)  # has a line of its own
    peak = max(range(len(most)), key=lambda i: most[i].nbytes)
    buffers = size_range(tuple(needed - latents - features for needed in budget.estimate.needed))
    return (
        f"peak - {size_range(budget.needed)} from chunk {peak + 1} of {len(budget.plan.chunks)} "
        f"on: buffers and rows held twice while they move {buffers}, all latents of the take "
        f"{size(latents)}, activations {size(budget.activation_bytes)}"
    )


def _verdict(budget: Budget) -> str:
    least, most = budget.needed
    if budget.estimate.main[0] > budget.main_bytes:
        return "does not fit in main memory: the sampler would refuse it"
    if least > budget.usable_bytes:
        return "does not fit on this device: the sampler would refuse it"
    if most <= budget.usable_bytes:
        if most <= budget.room + budget.activation_bytes:
            return "fits beside the weights"
        return "fits when the host unloads other models or weights"
    if budget.expected is None:
        return "fits if the picture is predictable enough"
    if budget.expected.needed <= budget.usable_bytes:
        return "fits if the picture is as predictable as before"
    return "fits if the picture is more predictable than before"


def _length(budget: Budget, surely: int, at_best: int, expected: int | None) -> str:
    def words(frames: int) -> str:
        if not frames:
            return "none"
        pixels = pixel_frames(frames, budget.temporal_compression)
        longer = ", and longer" if frames == LENGTH_LIMIT else ""
        return f"{frames} latent frames ({pixels} pixel frames){longer}"

    if surely == at_best:
        return words(surely)
    as_expected = "" if expected is None else f"as expected {words(expected)}, "
    return f"surely {words(surely)}, {as_expected}at best {words(at_best)}"


def budget_dict(budget: Budget) -> dict:
    """The budget as plain values. The keys are a promise to saved graphs that read the
    JSON; in them "host" is main memory.
    """
    plan = budget.plan
    estimate = budget.estimate
    return {
        "policy": plan.policy.describe(),
        "frames": plan.take.total_frames,
        "given_frames": plan.take.given_frames,
        "streams": plan.streams,
        "dtype": str(plan.dtype).removeprefix("torch."),
        "bank_names": estimate.bank_names,
        "lane_bytes": estimate.lane_bytes,
        "allocated_bytes": estimate.allocated,
        "needed_bytes": budget.needed,
        "host_bytes": estimate.main,
        "free_host_bytes": budget.main_bytes,
        "activation_bytes": budget.activation_bytes,
        "latent_bytes": plan.latent_bytes,
        "feature_bytes": _feature_bytes(estimate),
        "action_bytes": estimate.least[-1].row.action_bytes,
        "weight_bytes_to_load": budget.weight_bytes,
        "free_bytes": budget.free_bytes,
        "total_bytes": budget.total_bytes,
        "longest_frames": {where: frames[1] for where, frames in budget.longest.items()},
        "surely_longest_frames": {where: frames[0] for where, frames in budget.longest.items()},
        "expected": _expected_dict(budget),
        "chunks": [
            _chunk_dict(least, most, budget.activation_bytes)
            for least, most in zip(estimate.least, estimate.most)
        ],
    }


def _chunk_dict(least: ChunkBytes, most: ChunkBytes, activation_bytes: int) -> dict:
    row = least.row
    return {
        "index": row.index,
        "start_frame": row.start_frame,
        "frames": row.frames,
        "given": row.given,
        "bank_tokens": row.bank_tokens,
        "bank_bytes": row.bank_bytes,
        "most_bank_bytes": most.row.bank_bytes,
        "allocated_bytes": [row.allocated_bytes, most.row.allocated_bytes],
        "host_bytes": [least.main_bytes, most.main_bytes],
        "needed_bytes": [least.nbytes + activation_bytes, most.nbytes + activation_bytes],
    }


def _expected_dict(budget: Budget) -> dict | None:
    """What is expected of the take, and by chunk."""
    if not budget.expected:
        return None
    chunks = [
        {
            "bank_tokens": chunk.row.bank_tokens,
            "bank_bytes": chunk.row.bank_bytes,
            "allocated_bytes": chunk.row.allocated_bytes,
            "host_bytes": chunk.main_bytes,
            "needed_bytes": chunk.nbytes + budget.activation_bytes,
        }
        for chunk in budget.estimate.expected
    ]
    return {
        "share": budget.plan.share,
        "allocated_bytes": budget.expected.allocated,
        "needed_bytes": budget.expected.needed,
        "host_bytes": budget.expected.main,
        "longest_frames": budget.expected_longest,
        "chunks": chunks,
    }


def budget_json(budget: Budget) -> str:
    return json.dumps(budget_dict(budget), indent=1)
