"""Pictures of a take's memory."""
import numpy as np
import torch
from comfy_api.latest import ui
from torch import Tensor

from ..rollout.stats import KVStats


def plot_stats(stats: KVStats) -> Tensor:
    """Live bytes, kept tokens by bank, prune ratio and seconds by phase over the chunks, as an IMAGE `[1, H, W, 3]`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # here: importing matplotlib takes a second
    from matplotlib.figure import Figure

    rows = [row for row in stats.chunks if row.item == 0]
    frame = [row.start_frame for row in rows]
    figure = Figure(figsize=(9, 6), dpi=110, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    (memory, tokens), (ratio, time) = figure.subplots(2, 2)

    mib = 2 ** 20
    memory.plot(frame, [row.allocated_bytes / mib for row in rows], color="0.6", linestyle="--", label="allocated")
    banks = range(max(len(row.bank_bytes) for row in rows))
    memory.stackplot(frame, [[row.bank_bytes[bank] / mib for row in rows] for bank in banks], alpha=.5,
                     labels=[f"history, bank {bank + 1}" for bank in banks])
    memory.set(title="KV cache", ylabel="MiB")
    for bank in banks:
        tokens.step(frame, [row.bank_tokens[bank] for row in rows], where="post", label=f"bank {bank + 1}")
    tokens.set(title="history tokens a query can read", ylabel="tokens")
    ratio.plot(frame, [100 * (1 - row.kept_tokens / row.full_tokens) if row.full_tokens else 0 for row in rows], color="tab:red")
    ratio.set(title=f"pruned of the history ({stats.prune_ratio:.1%} over the take)", ylabel="%", ylim=(-3, 103))
    phases = sorted({name for row in rows for name in row.seconds_by_phase})
    time.stackplot(frame, [[row.seconds_by_phase.get(name, 0) for row in rows] for name in phases], labels=phases, alpha=.7)
    time.set(title=f"time per chunk ({stats.seconds:.1f} s in all)", ylabel="s")
    for axes in (memory, tokens, ratio, time):
        axes.set_xlabel("latent frame")
        axes.grid(alpha=.3)
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
        if axes is not ratio:
            axes.legend(fontsize="small")
    canvas.draw()
    return torch.from_numpy(np.asarray(canvas.buffer_rgba())[..., :3].copy()).float()[None] / 255


def save_preview(image: Tensor, node) -> list:
    """Put an IMAGE into the host's temp folder; what a node's `ui` names as its images."""
    return ui.PreviewImage(image, cls=node).as_dict()["images"]
