"""Directed Forcing and MonarchRT against dense reads of the same window, at real shapes: 1560
tokens a frame, a window of 21 frames, 12 heads of 128.

One layer of a 1.3B model (width 1536, feed-forward 8960) with random weights in bfloat16; the
context is filled with random keys and values, the chunk after it is real: `--steps` denoising
steps. Head importances are spread evenly over 0 to 1, with the published gamma 2 and budgets of 4
to 12 frames; they read `mean_budget` frames of the 21. MonarchRT reads all of them, in plain torch
where the authors' package is not installed. Dense and the other alternate in one process; medians
over the pairs.

attention_speedup   seconds in attention reads, with all that they need, dense over the other
whole_speedup       seconds of the whole chunk, dense over the other
scoring_share       share of Directed Forcing's reads that is not the attention kernel: descriptors,
                    diversity, z-scores, choosing, rows
"""

import statistics
import time
from dataclasses import dataclass, field

import _common as common

args = common.start(
    __doc__,
    host_flags=lambda args: [common.SDPA],
    backend={
        "nargs": "*",
        "default": None,
        "help": "of Directed Forcing's ragged attention; those that work here by default",
    },
    h_reduce={"type": int, "nargs": "*", "default": [1, 2], "help": "MonarchRT's"},
    pairs={"type": int, "default": 3},
    steps={"type": int, "default": 2},
    threads={"type": int, "default": 0, "help": "0: torch's own choice"},
)
import torch
from filled import FilledContext
from keepsake.kv_policies import (
    DirectedForcing,
    HeadTable,
    KVPolicy,
    MonarchRT,
    ReadAll,
    Selection,
    SinkWindow,
)
from keepsake.kv_policies.selection import directed_forcing
from keepsake.kv_policies.selection.ragged import BACKENDS, ragged_attention
from support import tiny

HEIGHT, WIDTH, CHUNK, WINDOW, DIM, HEADS, FFN = (
    (12, 20, 3, 21, 192, 12, 384) if args.quick else (60, 104, 3, 21, 1536, 12, 8960)
)


@dataclass(frozen=True)
class Timed(Selection):
    """Another selection, with the seconds of its reads of generated chunks."""

    inner: Selection
    seconds: list = field(default_factory=list, compare=False)

    def start(self, geometry, take, retention):
        run = self.inner.start(geometry, take, retention)
        read = run.read

        def timed(layer, forward, *rest):
            began = time.perf_counter()
            out = read(layer, forward, *rest)
            if not forward.chunk.given:
                self.seconds.append(time.perf_counter() - began)
            return out

        run.read = timed
        return run


def main():
    if args.threads:
        torch.set_num_threads(args.threads)
    model = tiny.tiny_model(weights=torch.bfloat16, dim=DIM, heads=HEADS, layers=1, ffn_dim=FFN)
    table = HeadTable("spread", "x0_drift", (tuple(head / (HEADS - 1) for head in range(HEADS)),))
    noise, prefix = (
        tiny.noise_of(WINDOW, HEIGHT, WIDTH),
        tiny.noise_of(WINDOW - CHUNK, HEIGHT, WIDTH, seed=4),
    )
    kernel: list[float] = []

    def timed_kernel(*arguments):
        began = time.perf_counter()
        ragged_attention(*arguments)
        kernel.append(time.perf_counter() - began)

    directed_forcing.ragged_attention = timed_kernel

    def run(selection):
        """Seconds in reads, in the kernel, and of the chunk."""
        timed, results = Timed(selection), []
        kernel.clear()
        tiny.ours(
            model,
            noise,
            CHUNK,
            KVPolicy(SinkWindow(3, WINDOW, "shifted"), timed, FilledContext()),
            prefix=prefix,
            steps=args.steps,
            on_stats=results.append,
        )
        return sum(timed.seconds), sum(kernel), results[0].chunks[-1].seconds

    available = [
        name
        for name, kernel_choice in BACKENDS.items()
        if kernel_choice.available(torch.zeros(1, 1, 1, DIM // HEADS, dtype=torch.bfloat16))
    ]
    backends = [name for name in available if name != "torch nested"]
    backends = backends if args.backend is None else args.backend
    others = {
        f"directed, {name}": DirectedForcing(head_table=table, backend=name) for name in backends
    }
    others |= {f"monarch_rt, h_reduce {tiles}": MonarchRT(tiles) for tiles in args.h_reduce}
    rows = []
    for name, other in others.items():
        pairs = []
        for pair in range(args.pairs):
            order = (ReadAll(), other) if pair % 2 else (other, ReadAll())
            results = {selection: run(selection) for selection in order}
            pairs.append((results[ReadAll()], results[other]))
            dense, ours = pairs[-1]
            print(
                f"{name}, pair {pair + 1}: chunk dense {dense[2]:.1f} s, its own {ours[2]:.1f} s",
                flush=True,
            )
        row = {
            "selection": name,
            "case": f"{WINDOW} frames of {HEIGHT // 2 * WIDTH // 2} tokens, {HEADS} heads",
            "attention_speedup": statistics.median(dense[0] / ours[0] for dense, ours in pairs),
            "whole_speedup": statistics.median(dense[2] / ours[2] for dense, ours in pairs),
            "scoring_share": None,
            "mean_budget": None,
            "threads": torch.get_num_threads(),
        }
        if isinstance(other, DirectedForcing):
            budgets = table.budgets(other.gamma, other.budget_min, other.budget_max)[0]
            row["scoring_share"] = statistics.median(1 - ours[1] / ours[0] for _, ours in pairs)
            row["mean_budget"] = sum(budgets) / HEADS
        rows.append(row)
    common.report("attention", rows, pairs=args.pairs, steps=args.steps)


main()
