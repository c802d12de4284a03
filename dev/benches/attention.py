"""Directed Forcing against dense reads of the same window, at real shapes: 1560 tokens a frame, a
window of 21 frames, 12 heads of 128.

One layer of a 1.3B model (width 1536, feed-forward 8960) with random weights in bfloat16; the
context is filled with random keys and values, the chunk after it is real: `--steps` denoising
steps. Head importances are spread evenly over 0 to 1, with the published gamma 2 and budgets of 4
to 12 frames; they read `mean_budget` frames of the 21. Dense and directed alternate in one process;
medians over the pairs.

attention_speedup   seconds in attention reads, scoring and gathering included, dense over directed
whole_speedup       seconds of the whole chunk, dense over directed
scoring_share       share of the directed reads that is not the attention kernel: descriptors,
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
        "help": "backends of ragged attention; those that work here by default",
    },
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

        def timed(layer, chunk, *rest):
            began = time.perf_counter()
            out = read(layer, chunk, *rest)
            if not chunk.given:
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
    rows = []
    for backend in args.backend or [name for name in available if name != "torch nested"]:
        directed, pairs = DirectedForcing(head_table=table, backend=backend), []
        for pair in range(args.pairs):
            order = (ReadAll(), directed) if pair % 2 else (directed, ReadAll())
            results = {type(selection): run(selection) for selection in order}
            pairs.append((results[ReadAll], results[DirectedForcing]))
            print(
                f"{backend}, pair {pair + 1}: chunk dense {results[ReadAll][2]:.1f} s, directed "
                f"{results[DirectedForcing][2]:.1f} s",
                flush=True,
            )
        budgets = table.budgets(directed.gamma, directed.budget_min, directed.budget_max)[0]
        rows.append(
            {
                "backend": backend,
                "case": f"{WINDOW} frames of {HEIGHT // 2 * WIDTH // 2} tokens, {HEADS} heads",
                "attention_speedup": statistics.median(dense[0] / ours[0] for dense, ours in pairs),
                "whole_speedup": statistics.median(dense[2] / ours[2] for dense, ours in pairs),
                "scoring_share": statistics.median(1 - ours[1] / ours[0] for _, ours in pairs),
                "mean_budget": sum(budgets) / HEADS,
                "threads": torch.get_num_threads(),
            }
        )
    common.report("attention", rows, pairs=args.pairs, steps=args.steps)


main()
