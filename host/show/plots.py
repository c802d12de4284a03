"""Pictures of a take's memory."""

import numpy as np
import torch
from comfy_api.latest import ui
from torch import Tensor

from ...kv_policies import HISTORY
from ...rollout.stats import KVStats
from ..budget.outlook import Outlook


def _figure(width: float, height: float):
    from matplotlib.backends.backend_agg import (
        FigureCanvasAgg,  # here: importing matplotlib takes a second
    )
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _image(figure) -> Tensor:
    """A drawn figure as an IMAGE `[1, H, W, 3]`."""
    figure.canvas.draw()
    return (
        torch.from_numpy(np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()).float()[None]
        / 255
    )


def plot_stats(stats: KVStats) -> Tensor:
    """Over the chunks: live bytes, tokens by bank, prune ratio, seconds by phase; and what stayed
    of each frame, and the policy's scores.
    """
    rows = stats.rows_of(0)
    frame = [row.start_frame for row in rows]
    figure = _figure(9, 8)
    figure.suptitle(
        ", ".join(f"{slot} {part['name']}" for slot, part in stats.policy.items()),
        fontsize="medium",
    )
    (memory, tokens), (ratio, time), (kept, scores) = figure.subplots(3, 2)

    mib = 2**20
    memory.plot(
        frame,
        [row.allocated_bytes / mib for row in rows],
        color="0.6",
        linestyle="--",
        label="allocated",
    )
    banks = range(max(len(row.bank_bytes) for row in rows))
    memory.stackplot(
        frame,
        [[row.bank_bytes[bank] / mib for row in rows] for bank in banks],
        alpha=0.5,
        labels=stats.bank_names,
    )
    memory.set(title="KV cache", ylabel="MiB")
    for bank in banks:
        tokens.step(
            frame,
            [row.bank_tokens[bank] for row in rows],
            where="post",
            label=stats.bank_names[bank],
        )
    tokens.set(title="history tokens a query can read", ylabel="tokens")
    ratio.plot(
        frame,
        [100 * (1 - row.kept_tokens / row.full_tokens) if row.full_tokens else 0 for row in rows],
        color="tab:red",
    )
    ratio.set(
        title=f"pruned of the history ({stats.prune_ratio:.1%} over the take)",
        ylabel="%",
        ylim=(-3, 103),
    )
    phases = sorted({name for row in rows for name in row.seconds_by_phase})
    time.stackplot(
        frame,
        [[row.seconds_by_phase.get(name, 0) for row in rows] for name in phases],
        labels=phases,
        alpha=0.7,
    )
    time.set(title=f"time per chunk ({stats.seconds:.1f} s in all)", ylabel="s")
    share = stats.memory_maps[0].at(rows[-1]).flatten(1).mean(1)
    kept.bar(range(len(share)), 100 * share, width=1.0, color="tab:olive")
    kept.set(title="of each frame, in memory at the last chunk", ylabel="%", ylim=(0, 103))
    for axes in (memory, tokens, ratio, time, kept):
        axes.set_xlabel("latent frame")
        axes.grid(alpha=0.3)
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
        if axes not in (ratio, kept):
            axes.legend(fontsize="small")
    _plot_scores(scores, stats.scores)
    return _image(figure)


def plot_outlook(outlook: Outlook) -> Tensor:
    """Over the chunks: what a take will need, history by bank and buffers, beside what the device
    has.
    """
    least, most = outlook.estimate.least, outlook.estimate.most
    figure, needed = (
        _figure(9, 4.5),
        [[need.nbytes + outlook.activations for need in needs] for needs in (least, most)],
    )
    unit, name_of_unit = (2**30, "GiB") if max(needed[1]) >= 2**30 else (2**20, "MiB")
    axes = figure.subplots()
    frame = [need.row.start_frame for need in least]
    axes.stackplot(
        frame,
        [
            [need.row.bank_bytes[bank] / unit for need in least]
            for bank in range(len(outlook.estimate.bank_names))
        ],
        alpha=0.5,
        labels=[
            "history" if name == HISTORY else f"history, {name}"
            for name in outlook.estimate.bank_names
        ],
    )
    axes.plot(
        frame,
        [need.row.allocated_bytes / unit for need in least],
        color="0.6",
        linestyle="--",
        label="buffers",
    )
    needed = [[nbytes / unit for nbytes in of_chunks] for of_chunks in needed]
    axes.plot(
        frame,
        needed[0],
        color="tab:red",
        label="needed on the device, with copies, latents and activations"
        + (", at least" if least is not most else ""),
    )
    if least is not most:
        axes.plot(frame, needed[1], color="tab:red", linestyle=":", label="at most")
        axes.fill_between(frame, *needed, color="tab:red", alpha=0.1)
    if outlook.expected:
        expected = [
            (need.nbytes + outlook.activations) / unit for need in outlook.estimate.expected
        ]
        axes.plot(frame, expected, color="tab:red", linestyle="--", label="as expected")
    for nbytes, name, style in (
        (outlook.free - outlook.weights, "free beside the weights", "-."),
        (outlook.total, "the device has", "-"),
    ):
        if nbytes / unit < 3 * max(needed[1]):  # far above it would flatten the rest
            axes.axhline(nbytes / unit, color="k", linewidth=0.8, linestyle=style, label=name)
    axes.set(
        title="memory that the take will need",
        xlabel="latent frame",
        ylabel=name_of_unit,
        ylim=(0, None),
    )
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    return _image(figure)


def _plot_scores(axes, scores: dict | None):
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
    """One value per head `[L, H]` as an IMAGE; `static` `[L - 1, H]` marks heads from layer 1 on."""
    figure = _figure(2.5 + 0.25 * values.shape[1], 1.5 + 0.25 * values.shape[0])
    axes = figure.subplots()
    shown = axes.imshow(values, vmin=0, cmap="viridis")
    if static is not None:
        layers, heads = static.nonzero(as_tuple=True)
        axes.scatter(
            heads, layers + 1, marker="s", s=60, facecolors="none", edgecolors="red", label="static"
        )
    axes.set(xlabel="head", ylabel="layer", title=title)
    figure.colorbar(shown, ax=axes)
    return _image(figure)


def save_preview(image: Tensor, node) -> list:
    """Put an IMAGE into the host's temp folder; what a node's `ui` names as its images."""
    return ui.PreviewImage(image, cls=node).as_dict()["images"]
