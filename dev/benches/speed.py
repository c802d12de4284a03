"""Wall time, alternated in one process: medians over pairs of runs, each of which goes first as
often.

`full_kv_over_stock`: ours over the stock AR sampler; same model, noise and threads. `cpu_ratio` is
that of CPU seconds.
`sink_window_flat`: whether a window's time per chunk stays flat; median seconds of the last third
of the chunks over those of the chunks from the 30th on to there.

--policy decoprune (sink_window, fp8, int8, int4) instead: the continuation after a minute of
context at real token counts, FullKV's seconds over the policy's: 240 latent frames of 1560 tokens
(832x480), chunks of 3, 4 steps. One layer with one head of 128 channels, in bf16, so that it fits.
By the width of the feed-forward, FullKV's linear work to its attention is 1 to 11 in FLOPs; the 14B
backbone's shapes give 1 to `attention_over_linear_14b`, which would favour a pruning policy more.
Random weights predict nothing, so DeCoPrune keeps a fixed share of each chunk, such that the
paper's 85.4 % of the history are pruned, sink and latest chunks included. The context is filled in:
the policy scores, records and compacts each of its chunks as in any take, but keys and values are
random numbers under the right token names, not the outcome of a clean pass, and nothing is probed.
The continuation is real: two chunks, the first with its clean pass. `cpu_speedup`: the same from
the process's CPU seconds, which other work on the machine disturbs less; `flops_speedup`: what the
work says. `policy_share`: scoring and compaction over all seconds of the continuation.
`policy_context_seconds`: the same work, summed over the context's chunks.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import _common as common

args = common.start(
    __doc__,
    host_flags=lambda args: [common.SDPA] if args.policy else [],
    policy={
        "choices": ["decoprune", "sink_window", "fp8", "int8", "int4"],
        "help": "compare the continuation after a long context with FullKV's",
    },
)
import torch
from filled import FilledContext
from keepsake.kv_policies import DeCoPrune, KVPolicy, KVStorage, SinkWindow
from keepsake.rollout.stats import KVStats
from support import tiny

HEIGHT, WIDTH, CHUNK = 60, 104, 3  # latents of 832x480; latent frames
FRAME_TOKENS = HEIGHT // 2 * WIDTH // 2
DIM, LINEAR_TO_ATTENTION = 128, 11
PRUNE_RATIO = 0.8543  # DeCoPrune's in arXiv 2609.39096, table 1


def in_turns(pairs: int, *functions: Callable) -> Iterator[tuple]:
    """The answers of two functions, so many times; each goes first as often, since caches and
    clocks favour the second.
    """
    for pair in range(pairs):
        if pair % 2:
            yield tuple(reversed([function() for function in reversed(functions)]))
        else:
            yield tuple(function() for function in functions)


def over_stock() -> dict:
    frames = 9 if args.quick else 15
    model = tiny.tiny_model(dim=256, heads=4, layers=4)
    prepared = tiny.prepared(model)
    noise = tiny.noise_of(frames, 24, 32)

    def stock() -> tuple[float, float]:
        return seconds(tiny.stock, prepared, noise, 3)

    def ours() -> tuple[float, float]:
        return seconds(tiny.ours, model, noise, 3)

    stock(), ours()  # what a first run costs for good is not the sampler's
    pairs = list(in_turns(3 if args.quick else 9, stock, ours))
    ratios, cpu_ratios = zip(*((ours[0] / stock[0], ours[1] / stock[1]) for stock, ours in pairs))
    return {
        "case": "full_kv_over_stock",
        "ratio": statistics.median(ratios),
        "cpu_ratio": statistics.median(cpu_ratios),
        "ratios": list(ratios),
    }


def seconds(function, *arguments, **options) -> tuple[float, float]:
    """Of the clock, and of the processor."""
    began, began_cpu = time.perf_counter(), time.process_time()
    function(*arguments, **options)
    return time.perf_counter() - began, time.process_time() - began_cpu


def window_flat() -> dict:
    model, ratios = tiny.tiny_model(dim=256, heads=4, layers=4), []
    for _ in range(1 if args.quick else 3):
        stats = []
        tiny.ours(
            model,
            tiny.noise_of(180 if args.quick else 300, 8, 8),
            3,
            KVPolicy(SinkWindow(3, 21)),
            on_stats=stats.append,
        )
        chunk_seconds = [row.seconds for row in stats[0].chunks[30:-1]]
        third = len(chunk_seconds) // 3
        ratios.append(
            statistics.median(chunk_seconds[-third:]) / statistics.median(chunk_seconds[:-third])
        )
    return {
        "case": "sink_window_flat",
        "ratio": statistics.median(ratios),
        "cpu_ratio": None,
        "ratios": ratios,
    }


def work(dim: int, ffn_dim: int, history: float) -> tuple[float, float]:
    """FLOPs of a token in one layer: linear (self q, k, v, o; cross q, o; both of the
    feed-forward), and attention over `history` rows.
    """
    return 2 * (6 * dim**2 + 2 * dim * ffn_dim), 4 * history * dim


class Continuation:
    """Takes that go on after a filled context under a policy."""

    def __init__(self, context: int, new: int):
        self.given_chunks = context // CHUNK
        tokens = context * FRAME_TOKENS
        self.ffn_dim = round(tokens / LINEAR_TO_ATTENTION - 3 * DIM)
        self.model = tiny.tiny_model(
            weights=torch.bfloat16, dim=DIM, heads=1, layers=1, ffn_dim=self.ffn_dim
        )
        # On a CPU the host would compute in fp32, where linear layers are half as fast.
        self.model.set_model_compute_dtype(torch.bfloat16)
        self.noise = tiny.noise_of(context + new, HEIGHT, WIDTH)
        self.prefix = tiny.noise_of(context, HEIGHT, WIDTH, seed=4)
        # What a first run costs for good is not the policy's.
        tiny.ours(self.model, self.noise[:, :, :CHUNK], CHUNK)

    def run(self, policy: KVPolicy) -> tuple[KVStats, float]:
        """Stats of a take, and the process's CPU seconds over its continuation."""
        stats, cpu_seconds = [], []  # the latter after each given chunk and each step
        tiny.ours(
            self.model,
            self.noise,
            CHUNK,
            replace(policy, schedule=FilledContext()),
            prefix=self.prefix,
            on_stats=stats.append,
            callback=lambda *_: cpu_seconds.append(time.process_time()),
        )
        return stats[0], cpu_seconds[-1] - cpu_seconds[self.given_chunks - 1]


def compared_policy(given_chunks: int) -> KVPolicy:
    """The policy that `--policy` names; DeCoPrune with the share that makes PRUNE_RATIO."""
    if args.policy == "sink_window":
        return KVPolicy(SinkWindow(3, 21))
    if args.policy != "decoprune":
        return KVPolicy(storage=KVStorage(args.policy))
    whole = DeCoPrune.sink_chunks + DeCoPrune.dense_chunks
    kept = (1 - PRUNE_RATIO) * given_chunks
    share = max(0.0, (kept - whole) / (given_chunks - whole))
    return KVPolicy(DeCoPrune(mode="target_keep", target_keep=share))


def total(stats: KVStats, phase: str | None = None, given: bool = False) -> float:
    """Seconds of the continuation, or of the given chunks; of one phase or of all."""
    rows = [row for row in stats.chunks if row.given == given]
    return sum(row.seconds_by_phase.get(phase, 0) if phase else row.seconds for row in rows)


def continuation() -> list[dict]:
    # 1. The takes.
    context, new, pairs = (48, 6, 1) if args.quick else (240, 6, 3)
    takes = Continuation(context, new)
    compared = compared_policy(takes.given_chunks)
    share = f", {PRUNE_RATIO:.1%} pruned by setting" if args.policy == "decoprune" else ""
    print(
        f"{args.policy} over FullKV: one layer, one head, random context of {context} latent "
        f"frames{share}, {torch.get_num_threads()} CPU threads"
    )
    # 2. Both policies in turns.
    all_stats, ratios, cpu_ratios = [], [], []
    runs = in_turns(pairs, lambda: takes.run(KVPolicy()), lambda: takes.run(compared))
    for number, ((full, full_cpu), (ours, ours_cpu)) in enumerate(runs, 1):
        all_stats.append(ours)
        ratios.append(total(full) / total(ours))
        cpu_ratios.append(full_cpu / ours_cpu)
        print(
            f"pair {number} of {pairs}: FullKV {total(full):.1f} s (CPU {full_cpu:.1f} s), "
            f"{args.policy} {total(ours):.1f} s (CPU {ours_cpu:.1f} s)",
            flush=True,
        )
    # 3. What the work says, here and at the 14B backbone's shapes.
    tokens, own = context * FRAME_TOKENS, CHUNK * FRAME_TOKENS
    history = tokens * (1 - ours.prune_ratio)
    full_work = sum(work(DIM, takes.ffn_dim, tokens + own))
    our_work = sum(work(DIM, takes.ffn_dim, history + own))
    linear, attention = work(DIM, takes.ffn_dim, tokens)
    linear_14b, attention_14b = work(5120, 13824, tokens)
    policy_shares = [total(stats, "policy") / total(stats) for stats in all_stats]
    policy_seconds = [total(stats, "policy", given=True) for stats in all_stats]
    return [
        {
            "case": f"{args.policy}_continuation",
            "speedup": statistics.median(ratios),
            "cpu_speedup": statistics.median(cpu_ratios),
            "prune_ratio": ours.prune_ratio,
            "flops_speedup": full_work / our_work,
            "policy_share": statistics.median(policy_shares),
            "policy_context_seconds": statistics.median(policy_seconds),
            "attention_over_linear": attention / linear,
            "attention_over_linear_14b": attention_14b / linear_14b,
            "dtype": ours.dtype,
            "threads": torch.get_num_threads(),
            "speedups": ratios,
            "cpu_speedups": cpu_ratios,
        }
    ]


common.report("speed", continuation() if args.policy else [over_stock(), window_flat()])
