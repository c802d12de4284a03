"""A take that cannot fit is refused before any weight moves, with changes that make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from ...kv_policies.smaller import (
    SINK_FRAMES,
    retention_is_free,
    with_pruning,
    with_smaller_storage,
    with_window,
)
from ...rollout.estimate import fits, frames_in, largest_that, longest_take
from ...rollout.take_plan import TakePlan
from ...rollout.timeline import pixel_frames
from ..model.backbone import read_geometry
from .budget import LENGTH_LIMIT, Budget, activation_bytes
from .report import size

SUGGESTIONS = 3  # how many changes the refusal names


def refuse_what_cannot_fit(model, budget: Budget, latent_size: tuple[int, int]):
    """ValueError when even the least need is more than a take can have: the whole device, since
    the host can offload weights, or what is free of main memory.
    """
    needed = budget.needed[0]
    main_needed = budget.estimate.main[0]
    if needed <= budget.usable_bytes and main_needed <= budget.main_bytes:
        return
    if budget.offloads:
        device_has = f"{size(budget.total_bytes)} in all"
    else:
        device_has = f"{size(budget.usable_bytes)} free for it"
    if main_needed:
        needs = (
            f"at least {size(needed)} of the device, which has {device_has}, and "
            f"{size(main_needed)} of main memory, which has {size(budget.main_bytes)} free"
        )
    else:
        needs = (
            f"at least {size(needed)}, the KV cache {size(budget.estimate.allocated[0])} of it, "
            f"and the device has {device_has}"
        )
    changes = [
        f"({number}) {change}"
        for number, change in enumerate(
            islice(changes_that_fit(model, budget, latent_size), SUGGESTIONS), 1
        )
    ]
    if changes:
        advice = f"Any of these makes it fit: {'; '.join(changes)}."
    else:
        advice = "No single change of length, size or policy makes it fit: use a smaller model."
    raise ValueError(f"This take needs {needs}. {advice}")


def changes_that_fit(model, budget: Budget, latent_size: tuple[int, int]) -> Iterator[str]:
    """Sentences, from the change that costs the take least to the one that costs it most, each
    tried by a dry run.
    """
    plan = budget.plan
    room = (budget.most_room, budget.main_bytes)
    fresh = not plan.finished_chunks  # a take that goes on keeps its prompts, policy and size
    if fresh and plan.streams > 1 and fits(replace(plan, streams=1), *room):
        yield "one prompt stream: cfg 1 and one positive prompt"
    for smaller in with_smaller_storage(plan.policy, same_bits=not fresh):
        if _works(replace(plan, policy=smaller.policy), room):
            yield smaller.change
    if fresh and retention_is_free(plan.policy):
        yield from _pruning(plan, room)
        yield from _window(plan, room)
    if fresh or plan.policy.schedule.extends:
        bound = min(LENGTH_LIMIT, plan.take.total_frames - 1)
        frames = longest_take(plan, room[0], bound, room[1])
        if frames:
            pixels = pixel_frames(frames, budget.temporal_compression)
            yield (
                f"a latent of {frames} frames ({pixels} pixel frames) instead of "
                f"{plan.take.total_frames}"
            )
    if fresh:
        yield from _smaller_size(model, budget, latent_size)


def _pruning(plan: TakePlan, room: tuple[int, int]) -> Iterator[str]:
    smaller = with_pruning(plan.policy)
    if smaller and _works(replace(plan, policy=smaller.policy), room):
        yield smaller.change


def _window(plan: TakePlan, room: tuple[int, int]) -> Iterator[str]:
    """The longest window that fits, if any."""
    total = plan.take.total_frames
    chunk_frames = plan.geometry.chunk_frames

    def works(window_frames: int) -> bool:
        # Once the window is full, every chunk needs what the one before it did. So a shorter take
        # has the same peak, but for its latents.
        full = max(plan.take.given_frames, window_frames) + SINK_FRAMES + 3 * chunk_frames
        policy = with_window(plan.policy, window_frames).policy
        short = replace(plan, policy=policy).of_length(min(total, full))
        missing_latents = plan.latent_bytes - short.latent_bytes
        return _works(short, (room[0] - missing_latents, room[1]))

    smallest = SINK_FRAMES + chunk_frames
    guess = frames_in(plan, room[0])
    window_frames = largest_that(works, smallest, total - 1, guess)
    if window_frames:
        yield with_window(plan.policy, window_frames).change


def _smaller_size(model, budget: Budget, latent_size: tuple[int, int]) -> Iterator[str]:
    """The largest size of about the same proportions, if any, in latents of even sides."""
    old_height, old_width = latent_size

    def sides(half_height: int) -> tuple[int, int]:
        half_width = round(half_height * old_width / old_height)
        return 2 * half_height, max(2, 2 * half_width)

    def works(half_height: int) -> bool:
        chunk_frames = budget.plan.geometry.chunk_frames
        geometry = read_geometry(model, *sides(half_height), chunk_frames)
        plan = replace(budget.plan, geometry=geometry)
        activations = activation_bytes(model, plan, sides(half_height))
        return fits(plan, budget.usable_bytes - activations, budget.main_bytes)

    share = (budget.usable_bytes / budget.needed[0]) ** 0.5
    half_height = largest_that(works, 1, old_height // 2 - 1, int(share * old_height / 2))
    if half_height:
        height, width = sides(half_height)
        ratio = model.get_model_object("latent_format").spacial_downscale_ratio
        yield (
            f"a latent of {width}x{height} ({ratio * width}x{ratio * height} pixels) instead of "
            f"{old_width}x{old_height}"
        )


def _works(plan: TakePlan, room: tuple[int, int]) -> bool:
    """Whether the policy works with the take, and the take fits in these bytes of the device and
    of main memory.
    """
    try:
        plan.check()
    except ValueError:
        return False
    return fits(plan, *room)
