"""A take that cannot fit is refused before any weight moves, with changes that would make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...kv_policies import CleanPass, DeCoPrune, KVStorage, ReadAll, SinkWindow, Storage
from ...rollout.estimate import fits, frames_in, longest, most_that
from ...rollout.setup import Setup
from ..model.backbone import read_geometry
from .memory import activation_bytes
from .outlook import LONGEST, Outlook, size

SINK_FRAMES = 3
TARGET_KEEP = 0.15
SUGGESTIONS = 3


def refuse_what_cannot_fit(model, outlook: Outlook, latent_size: tuple[int, int]):
    """ValueError when even the least need is more than a take can have: all memory of the device,
    where weights do not count since the host can offload them, or what is free of main memory.
    """
    if outlook.needed[0] <= outlook.most and outlook.estimate.host[0] <= outlook.ram:
        return
    told = f"at least {size(outlook.needed[0])}, the KV cache {size(outlook.estimate.allocated[0])} of it, and the device has {_has(outlook)}"
    if outlook.estimate.host[0]:
        told = (
            f"at least {size(outlook.needed[0])} of the device, which has {_has(outlook)}, and "
            f"{size(outlook.estimate.host[0])} of main "
            f"memory, which has {size(outlook.ram)} free"
        )
    changes = [
        f"({number}) {change}"
        for number, change in zip(
            range(1, SUGGESTIONS + 1), changes_that_fit(model, outlook, latent_size)
        )
    ]
    raise ValueError(
        f"This take needs {told}. "
        + (
            f"Any of these makes it fit: {'; '.join(changes)}."
            if changes
            else "No single change of length, size or policy makes it fit: use a smaller model."
        )
    )


def _has(outlook: Outlook) -> str:
    return (
        f"{size(outlook.total)} in all" if outlook.offloads else f"{size(outlook.most)} free for it"
    )


def changes_that_fit(model, outlook: Outlook, latent_size: tuple[int, int]) -> Iterator[str]:
    """Sentences, from what costs the take least to what costs it most, each tried by the same dry
    run.
    """
    setup, room = outlook.setup, (outlook.most - outlook.activations, outlook.ram)
    fresh = not setup.made  # a take that goes on keeps its prompts, its policy and its size
    if fresh and setup.streams > 1 and fits(replace(setup, streams=1), *room):
        yield "one prompt stream: cfg 1 and one positive prompt"
    yield from other_storage(setup, room)
    if (
        fresh
        and isinstance(setup.policy.schedule, CleanPass)
        and isinstance(setup.policy.selection, ReadAll)
    ):
        yield from other_retention(setup, room)
    frames = (
        longest(setup, room[0], min(LONGEST, setup.take.total_frames - 1), room[1])
        if fresh or setup.policy.schedule.extends
        else 0
    )
    if frames:
        pixels = 1 + outlook.temporal_compression * (frames - 1)
        yield f"a latent of {frames} frames ({pixels} pixel frames) instead of {setup.take.total_frames}"
    if fresh:
        yield from smaller_size(model, outlook, latent_size)


def other_storage(setup: Setup, room: tuple[int, int]) -> Iterator[str]:
    """A take that goes on can be held elsewhere, and not in other bits."""
    held = setup.policy.storage
    for storage, told in (
        (KVStorage("int8"), "dtype int8"),
        (KVStorage("model", device="cpu"), "dtype model and device cpu"),
    ):
        goes_on = not setup.made or storage.anywhere() == held
        if (
            held == Storage()
            and goes_on
            and _works(replace(setup, policy=replace(setup.policy, storage=storage)), room)
        ):
            yield f"KV Storage with {told}"


def other_retention(setup: Setup, room: tuple[int, int]) -> Iterator[str]:
    pruned = with_retention(setup, DeCoPrune(mode="target_keep", target_keep=TARGET_KEEP))
    if not isinstance(setup.policy.retention, DeCoPrune) and _works(pruned, room):
        yield f"KV Policy: DeCoPrune in mode target_keep with target_keep {TARGET_KEEP:g}"
    total, chunk = setup.take.total_frames, setup.geometry.chunk_frames

    def works(frames: int) -> bool:
        """Once the window is full, every chunk needs what the one before it did, so a shorter take
        tells it; but for the latents.
        """
        full = max(setup.take.given_frames, frames) + SINK_FRAMES + 3 * chunk
        short = with_retention(setup, SinkWindow(SINK_FRAMES, frames)).of_length(min(total, full))
        return _works(short, (room[0] - setup.latent_bytes + short.latent_bytes, room[1]))

    window = most_that(works, SINK_FRAMES + chunk, total - 1, frames_in(setup, room[0]))
    if window:
        yield f"KV Policy: Sink + Window with window_frames {window} and sink_frames {SINK_FRAMES}"


def smaller_size(model, outlook: Outlook, latent_size: tuple[int, int]) -> Iterator[str]:
    """The largest size of about the same proportions, if any, in latents of even sides."""

    def sides(half_height: int) -> tuple[int, int]:
        return 2 * half_height, max(2, 2 * round(half_height * latent_size[1] / latent_size[0]))

    def works(half_height: int) -> bool:
        geometry = read_geometry(model, *sides(half_height), outlook.setup.geometry.chunk_frames)
        setup = replace(outlook.setup, geometry=geometry)
        return fits(
            setup, outlook.most - activation_bytes(model, setup, sides(half_height)), outlook.ram
        )

    share = (outlook.most / outlook.needed[0]) ** 0.5
    half_height = most_that(works, 1, latent_size[0] // 2 - 1, int(share * latent_size[0] / 2))
    if half_height:
        height, width = sides(half_height)
        ratio = model.get_model_object("latent_format").spacial_downscale_ratio
        yield f"a latent of {width}x{height} ({ratio * width}x{ratio * height} pixels) instead of {latent_size[1]}x{latent_size[0]}"


def with_retention(setup: Setup, retention) -> Setup:
    return replace(setup, policy=replace(setup.policy, retention=retention))


def _works(setup: Setup, room: tuple[int, int]) -> bool:
    try:
        setup.check()
    except ValueError:
        return False
    return fits(setup, *room)
