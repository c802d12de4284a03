"""Wall time, alternated in one process: medians over pairs of runs, each of which goes first as
often.

`full_kv_over_stock`: ours over the stock AR sampler; same model, noise and threads.
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
from support import tiny

HEIGHT, WIDTH, CHUNK = 60, 104, 3  # latents of 832x480; latent frames
FRAME_TOKENS = HEIGHT // 2 * WIDTH // 2
DIM, LINEAR_TO_ATTENTION = 128, 11
PRUNE_RATIO = 0.8543  # DeCoPrune's in arXiv 2609.39096, table 1


def seconds(function, *arguments, **options) -> float:
    began = time.perf_counter()
    function(*arguments, **options)
    return time.perf_counter() - began


def over_stock() -> dict:
    frames, model = 9 if args.quick else 15, tiny.tiny_model(dim=256, heads=4, layers=4)
    noise, prepared, ratios = tiny.noise_of(frames, 24, 32), tiny.prepared(model), []
    tiny.stock(model, noise, 3), tiny.ours(model, noise, 3)
    for pair in range(3 if args.quick else 9):
        if pair % 2:  # each goes first as often: caches and clocks favour the second
            ours = seconds(tiny.ours, model, noise, 3)
            stock = seconds(tiny.stock, prepared, noise, 3)
        else:
            stock = seconds(tiny.stock, prepared, noise, 3)
            ours = seconds(tiny.ours, model, noise, 3)
        ratios.append(ours / stock)
    return {"case": "full_kv_over_stock", "ratio": statistics.median(ratios), "ratios": ratios}


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
    return {"case": "sink_window_flat", "ratio": statistics.median(ratios), "ratios": ratios}


def work(dim: int, ffn_dim: int, history: float) -> tuple[float, float]:
    """FLOPs of a token in one layer: linear (self q, k, v, o; cross q, o; both of the
    feed-forward), and attention over `history` rows.
    """
    return 2 * (6 * dim**2 + 2 * dim * ffn_dim), 4 * history * dim


def continuation() -> list[dict]:
    context, new, pairs = (48, 6, 1) if args.quick else (240, 6, 3)
    tokens, chunks = context * FRAME_TOKENS, context // CHUNK
    ffn_dim = round(tokens / LINEAR_TO_ATTENTION - 3 * DIM)
    model = tiny.tiny_model(weights=torch.bfloat16, dim=DIM, heads=1, layers=1, ffn_dim=ffn_dim)
    model.set_model_compute_dtype(
        torch.bfloat16
    )  # the host computes in fp32 on a CPU, where linear layers are half as fast
    noise, prefix = (
        tiny.noise_of(context + new, HEIGHT, WIDTH),
        tiny.noise_of(context, HEIGHT, WIDTH, seed=4),
    )
    whole = DeCoPrune.sink_chunks + DeCoPrune.dense_chunks
    keep = max(0.0, ((1 - PRUNE_RATIO) * chunks - whole) / (chunks - whole))
    compared = {
        "decoprune": KVPolicy(DeCoPrune(mode="target_keep", target_keep=keep)),
        "sink_window": KVPolicy(SinkWindow(3, 21)),
        **{dtype: KVPolicy(storage=KVStorage(dtype)) for dtype in ("fp8", "int8", "int4")},
    }[args.policy]

    def run(policy):
        """Stats of a take, and the process's CPU seconds over its continuation."""
        collected, marks = [], []
        tiny.ours(
            model,
            noise,
            CHUNK,
            replace(policy, schedule=FilledContext()),
            prefix=prefix,
            on_stats=collected.append,
            callback=lambda *_: marks.append(time.process_time()),
        )  # once for each given chunk and each step
        return collected[0], marks[-1] - marks[chunks - 1]

    def total(stats, phase=None, given=False) -> float:
        rows = [row for row in stats.chunks if row.given == given]
        return sum(row.seconds_by_phase.get(phase, 0) if phase else row.seconds for row in rows)

    tiny.ours(
        model, noise[:, :, :CHUNK], CHUNK
    )  # what a first run costs for good is not the policy's
    share = f", {PRUNE_RATIO:.1%} pruned by setting" if args.policy == "decoprune" else ""
    print(
        f"{args.policy} over FullKV: one layer, one head, random context of {context} latent "
        f"frames{share}, {torch.get_num_threads()} CPU threads"
    )
    policy, ratios, cpu_ratios = [], [], []
    for pair in range(pairs):
        if pair % 2:
            (ours, ours_cpu), (full, full_cpu) = run(compared), run(KVPolicy())
        else:
            (full, full_cpu), (ours, ours_cpu) = run(KVPolicy()), run(compared)
        policy.append(ours)
        ratios.append(total(full) / total(ours))
        cpu_ratios.append(full_cpu / ours_cpu)
        print(
            f"pair {pair + 1} of {pairs}: FullKV {total(full):.1f} s (CPU {full_cpu:.1f} s), "
            f"{args.policy} {total(ours):.1f} s "
            f"(CPU {ours_cpu:.1f} s)",
            flush=True,
        )
    history, own = tokens * (1 - ours.prune_ratio), CHUNK * FRAME_TOKENS
    (linear, attention), (linear_14b, attention_14b) = (
        work(DIM, ffn_dim, tokens),
        work(5120, 13824, tokens),
    )
    return [
        {
            "case": f"{args.policy}_continuation",
            "speedup": statistics.median(ratios),
            "cpu_speedup": statistics.median(cpu_ratios),
            "prune_ratio": ours.prune_ratio,
            "flops_speedup": sum(work(DIM, ffn_dim, tokens + own))
            / sum(work(DIM, ffn_dim, history + own)),
            "policy_share": statistics.median(
                total(stats, "policy") / total(stats) for stats in policy
            ),
            "policy_context_seconds": statistics.median(
                total(stats, "policy", given=True) for stats in policy
            ),
            "attention_over_linear": attention / linear,
            "attention_over_linear_14b": attention_14b / linear_14b,
            "dtype": ours.dtype,
            "threads": torch.get_num_threads(),
            "speedups": ratios,
            "cpu_speedups": cpu_ratios,
        }
    ]


common.report("speed", continuation() if args.policy else [over_stock(), window_flat()])
