"""A take that cannot fit is refused before any weight moves, with changes that would make it fit."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..kv_policies import CleanPass, DeCoPrune, KVStorage, ReadAll, SinkWindow, Storage
from ..rollout.estimate import Setup, fits, longest, most_that
from .backbone import read_geometry, require_wan
from .memory import LONGEST, Outlook, activation_bytes, size

SINK_FRAMES = 3
TARGET_KEEP = .15
SUGGESTIONS = 3


def refuse_what_cannot_fit(model, outlook: Outlook, latent_size: tuple[int, int]):
    """ValueError when even the least need is more than all memory of the device; weights do not count, since the host can offload them."""
    if outlook.needed[0] <= outlook.total:
        return
    changes = [f"({number}) {change}" for number, change in zip(range(1, SUGGESTIONS + 1), changes_that_fit(model, outlook, latent_size))]
    raise ValueError(f"This take needs at least {size(outlook.needed[0])}, the KV cache {size(outlook.estimate.allocated[0])} of it, and the device has "
                     f"{size(outlook.total)} in all. " + (f"Any of these makes it fit: {'; '.join(changes)}." if changes else
                                                          "No single change of length, size or policy makes it fit: use a smaller model."))


def changes_that_fit(model, outlook: Outlook, latent_size: tuple[int, int]) -> Iterator[str]:
    """Sentences, from what costs the take least to what costs it most, each tried by the same dry run."""
    setup, budget = outlook.setup, outlook.total - outlook.activations
    if setup.streams > 1 and fits(replace(setup, streams=1), budget):
        yield "one prompt stream: cfg 1 and one positive prompt"
    coded = replace(setup, policy=replace(setup.policy, storage=KVStorage("int8")))
    if type(setup.policy.storage) is Storage and _works(coded, budget):
        yield "KV Storage with dtype int8"
    if _takes_retention(setup):
        pruned = with_retention(setup, DeCoPrune(mode="target_keep", target_keep=TARGET_KEEP))
        if not isinstance(setup.policy.retention, DeCoPrune) and _works(pruned, budget):
            yield f"KV Policy: DeCoPrune in mode target_keep with target_keep {TARGET_KEEP:g}"
        window = most_that(lambda frames: _works(with_retention(setup, SinkWindow(SINK_FRAMES, frames)), budget),
                           SINK_FRAMES + setup.geometry.chunk_frames, setup.take.total_frames - 1)
        if window:
            yield f"KV Policy: Sink + Window with window_frames {window} and sink_frames {SINK_FRAMES}"
    frames = longest(setup, budget, min(LONGEST, setup.take.total_frames - 1))
    if frames:
        pixels = 1 + outlook.temporal_compression * (frames - 1)
        yield f"a latent of {frames} frames ({pixels} pixel frames) instead of {setup.take.total_frames}"
    yield from smaller_size(model, outlook, latent_size)


def smaller_size(model, outlook: Outlook, latent_size: tuple[int, int]) -> Iterator[str]:
    """The largest size of about the same proportions, if any, in latents of even sides."""
    def sides(half_height: int) -> tuple[int, int]:
        return 2 * half_height, max(2, 2 * round(half_height * latent_size[1] / latent_size[0]))

    def works(half_height: int) -> bool:
        geometry = read_geometry(require_wan(model), *sides(half_height), outlook.setup.geometry.chunk_frames)
        setup = replace(outlook.setup, geometry=geometry)
        return fits(setup, outlook.total - activation_bytes(model, setup, sides(half_height)))

    half_height = most_that(works, 1, latent_size[0] // 2 - 1)
    if half_height:
        height, width = sides(half_height)
        ratio = model.get_model_object("latent_format").spacial_downscale_ratio
        yield f"a latent of {width}x{height} ({ratio * width}x{ratio * height} pixels) instead of {latent_size[1]}x{latent_size[0]}"


def with_retention(setup: Setup, retention) -> Setup:
    return replace(setup, policy=replace(setup.policy, retention=retention))


def _takes_retention(setup: Setup) -> bool:
    return isinstance(setup.policy.schedule, CleanPass) and isinstance(setup.policy.selection, ReadAll)


def _works(setup: Setup, budget: int) -> bool:
    try:
        setup.check()
    except ValueError:
        return False
    return fits(setup, budget)
