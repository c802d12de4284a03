"""Pictures of a take's memory."""

import numpy as np
import torch
from comfy_api.latest import ui
from torch import Tensor

from ...kv_policies import HISTORY
from ...rollout.chunk_bytes import ChunkBytes
from ...rollout.chunk_row import ChunkRow
from ...rollout.stats import KVStats
from ..budget.budget import Budget

MIB, GIB = 2**20, 2**30
FAR_ABOVE = 3  # a device's size is drawn up to so many times what is needed: more flattens the rest


def new_figure(width: float, height: float):
    """A matplotlib figure, sizes in inches, that no window system is asked for."""
    # Imported here, since importing matplotlib takes a second.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def as_image(figure) -> Tensor:
    """A drawn figure as an IMAGE `[1, H, W, 3]`."""
    figure.canvas.draw()
    rgba = np.asarray(figure.canvas.buffer_rgba())
    return torch.from_numpy(rgba[..., :3].copy()).float()[None] / 255


def plot_stats(stats: KVStats) -> Tensor:
    """A take's first item over its chunks: bytes, tokens by bank, pruned share, seconds by phase;
    below, the share of each frame that stayed, and the policy's scores.
    """
    rows = stats.rows_of(0)
    figure = new_figure(9, 8)
    slots = [f"{slot} {part['name']}" for slot, part in stats.policy.items()]
    figure.suptitle(", ".join(slots), fontsize="medium")
    (memory, tokens), (pruned, seconds), (kept, scores) = figure.subplots(3, 2)
    _plot_memory(memory, stats, rows)
    _plot_tokens(tokens, stats, rows)
    _plot_pruned(pruned, stats, rows)
    _plot_seconds(seconds, stats, rows)
    _plot_kept(kept, stats, rows)
    for axes in (memory, tokens, pruned, seconds, kept):
        axes.set_xlabel("latent frame")
        axes.grid(alpha=0.3)
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    for axes in (memory, tokens, seconds):
        axes.legend(fontsize="small")
    _plot_scores(scores, stats.scores)
    return as_image(figure)


def _starts(rows: list[ChunkRow]) -> list[int]:
    return [row.start_frame for row in rows]


def _banks(rows: list[ChunkRow]) -> range:
    return range(max(len(row.bank_bytes) for row in rows))


def _plot_memory(axes, stats: KVStats, rows: list[ChunkRow]):
    allocated = [row.allocated_bytes / MIB for row in rows]
    by_bank = [[row.bank_bytes[bank] / MIB for row in rows] for bank in _banks(rows)]
    axes.plot(_starts(rows), allocated, color="0.6", linestyle="--", label="allocated")
    axes.stackplot(_starts(rows), by_bank, alpha=0.5, labels=stats.bank_names)
    axes.set(title="KV cache", ylabel="MiB")


def _plot_tokens(axes, stats: KVStats, rows: list[ChunkRow]):
    for bank in _banks(rows):
        tokens = [row.bank_tokens[bank] for row in rows]
        axes.step(_starts(rows), tokens, where="post", label=stats.bank_names[bank])
    axes.set(title="history tokens a query can read", ylabel="tokens")


def _plot_pruned(axes, stats: KVStats, rows: list[ChunkRow]):
    shares = [
        100 * (1 - row.kept_tokens / row.full_tokens) if row.full_tokens else 0 for row in rows
    ]
    axes.plot(_starts(rows), shares, color="tab:red")
    title = f"pruned of the history ({stats.prune_ratio:.1%} over the take)"
    axes.set(title=title, ylabel="%", ylim=(-3, 103))


def _plot_seconds(axes, stats: KVStats, rows: list[ChunkRow]):
    phases = sorted({name for row in rows for name in row.seconds_by_phase})
    by_phase = [[row.seconds_by_phase.get(name, 0) for row in rows] for name in phases]
    axes.stackplot(_starts(rows), by_phase, labels=phases, alpha=0.7)
    axes.set(title=f"time per chunk ({stats.seconds:.1f} s in all)", ylabel="s")


def _plot_kept(axes, stats: KVStats, rows: list[ChunkRow]):
    shares = stats.memory_maps[0].at(rows[-1]).flatten(1).mean(1)
    edges = np.arange(len(shares) + 1) - 0.5
    axes.stairs(100 * shares, edges, fill=True, color="tab:olive")
    axes.set(title="of each frame, in memory at the last chunk", ylabel="%", ylim=(0, 103))


def plot_budget(budget: Budget) -> Tensor:
    """What a take will need over its chunks, history by bank and buffers, beside what the device
    has.
    """
    estimate = budget.estimate
    is_range = estimate.least is not estimate.most  # where what stays depends on the picture

    def needed(chunks: tuple[ChunkBytes, ...]) -> list[int]:
        return [chunk.nbytes + budget.activation_bytes for chunk in chunks]

    most = max(needed(estimate.most))
    unit, name_of_unit = (GIB, "GiB") if most >= GIB else (MIB, "MiB")

    def scaled(sizes) -> list[float]:
        return [size / unit for size in sizes]

    figure = new_figure(9, 4.5)
    axes = figure.subplots()
    # 1. History by bank, and the buffers that hold it.
    rows = [chunk.row for chunk in estimate.least]
    starts = _starts(rows)
    axes.stackplot(
        starts,
        [scaled(row.bank_bytes[bank] for row in rows) for bank in range(len(estimate.bank_names))],
        alpha=0.5,
        labels=[
            "history" if name == HISTORY else f"history, {name}" for name in estimate.bank_names
        ],
    )
    buffers = scaled(row.allocated_bytes for row in rows)
    axes.plot(starts, buffers, color="0.6", linestyle="--", label="buffers")
    # 2. All that is needed on the device; a range where it depends on the picture.
    label = "needed on the device, with copies, latents and activations"
    low, high = scaled(needed(estimate.least)), scaled(needed(estimate.most))
    axes.plot(starts, low, color="tab:red", label=label + (", at least" if is_range else ""))
    if is_range:
        axes.plot(starts, high, color="tab:red", linestyle=":", label="at most")
        axes.fill_between(starts, low, high, color="tab:red", alpha=0.1)
    if budget.expected:
        expected = scaled(needed(estimate.expected))
        axes.plot(starts, expected, color="tab:red", linestyle="--", label="as expected")
    # 3. What the device has.
    for nbytes, name, style in (
        (budget.free_bytes - budget.weight_bytes, "free beside the weights", "-."),
        (budget.total_bytes, "the device has", "-"),
    ):
        if nbytes < FAR_ABOVE * most:
            axes.axhline(nbytes / unit, color="k", linewidth=0.8, linestyle=style, label=name)
    axes.set(
        title="memory that the take will need",
        xlabel="latent frame",
        ylabel=name_of_unit,
        ylim=(0, None),
    )
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    return as_image(figure)


def _plot_scores(axes, scores: dict | None):
    """The histogram of the policy's scores; nothing where it gave none."""
    if scores is None:
        axes.set_axis_off()
        return
    edges = [scores["edges"][0] / 2, *scores["edges"], scores["edges"][-1] * 2]
    axes.stairs(scores["counts"], edges, fill=True, alpha=0.7)
    if scores["threshold"]:
        axes.axvline(
            scores["threshold"],
            color="tab:red",
            label=f"threshold {scores['threshold']:g}: kept to the right",
        )
        axes.legend(fontsize="small")
    axes.set(
        title=f"scores of the tokens ({scores['score']})",
        xlabel="score",
        ylabel="tokens",
        xscale="log",
    )


def plot_heads(values: Tensor, title: str, static: Tensor | None = None) -> Tensor:
    """A value for each head, `[L, H]`, as an IMAGE; bool `static` `[L - 1, H]` marks heads from
    layer 1 on.
    """
    layers, heads = values.shape
    figure = new_figure(2.5 + 0.25 * heads, 1.5 + 0.25 * layers)
    axes = figure.subplots()
    shown = axes.imshow(values, vmin=0, cmap="viridis")
    if static is not None:
        layer, head = static.nonzero(as_tuple=True)
        axes.scatter(
            head, layer + 1, marker="s", s=60, facecolors="none", edgecolors="red", label="static"
        )
    axes.set(xlabel="head", ylabel="layer", title=title)
    figure.colorbar(shown, ax=axes)
    return as_image(figure)


def save_preview(image: Tensor, node) -> list:
    """Put an IMAGE into the host's temp folder; return what a node's `ui` has under `images`."""
    return ui.PreviewImage(image, cls=node).as_dict()["images"]
