"""Wall time, alternated in one process: medians over pairs of runs, each of which goes first as often.

`full_kv_over_stock`: ours over the stock AR sampler; same model, noise and threads.
`sink_window_flat`: whether a window's time per chunk stays flat; median seconds of the last third of the chunks over those of the
chunks from the 30th on to there.

--policy decoprune instead: the continuation after a minute of context, FullKV's seconds over DeCoPrune's, at real token counts: 240 latent
frames of 1560 tokens, chunks of 3, 4 steps, 480p. One layer and one head of 128 channels in bf16, so that it fits. The linear layers' work to
attention's is 1 to 11 in FLOPs for FullKV, as the issue asks, by the width of the feed-forward; from the 14B backbone's own shapes it is
1 to `backbone_14b`, which would favour us more. Weights are random and predict nothing, so DeCoPrune keeps a fixed share of each
chunk, such that 85.4 % of the history is pruned (the paper's figure, sink and latest chunks included). The context was filled in: each of its
chunks is scored, recorded and compacted by the policy as in a take, but its keys and values are random numbers under the right token
names, and not the outcome of a clean pass. The continuation is real.
`flops_speedup`: what the work says. `policy_share`: scoring and compaction over the continuation's seconds. `policy_context_seconds`: the
same, summed over the context's chunks.
"""
import statistics
import time
from dataclasses import dataclass

import _common as common

args = common.start(__doc__, host_flags=lambda args: [common.SDPA] if args.policy else [],
                    policy={"choices": ["decoprune"], "help": "compare the continuation after a long context with FullKV's"})
import tiny  # noqa: E402
import torch  # noqa: E402
from keepsake.kv_policies import CleanPass, DeCoPrune, FullKV, KVPolicy, SinkWindow  # noqa: E402
from keepsake.rollout.loop import Model  # noqa: E402

HEIGHT, WIDTH, CHUNK = 60, 104, 3            # latents of 832x480; latent frames
FRAME_TOKENS = HEIGHT // 2 * WIDTH // 2
DIM, LINEAR_TO_ATTENTION = 128, 11
PRUNE_RATIO = .8543                          # DeCoPrune's in arXiv 2609.39096, table 1


def seconds(function, *arguments, **options) -> float:
    began = time.perf_counter()
    function(*arguments, **options)
    return time.perf_counter() - began


def over_stock() -> dict:
    frames, model = 9 if args.quick else 15, tiny.tiny_model(dim=256, heads=4, layers=4)
    noise, prepared, ratios = tiny.noise_of(frames, 24, 32), tiny.prepared(model), []
    tiny.stock(model, noise, 3), tiny.ours(model, noise, 3)
    for pair in range(3 if args.quick else 9):
        if pair % 2:                     # each goes first as often: caches and clocks favour the second
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
        tiny.ours(model, tiny.noise_of(180 if args.quick else 300, 8, 8), 3, KVPolicy(SinkWindow(3, 21)), on_stats=stats.append)
        chunk_seconds = [row.seconds for row in stats[0].chunks[30:-1]]
        third = len(chunk_seconds) // 3
        ratios.append(statistics.median(chunk_seconds[-third:]) / statistics.median(chunk_seconds[:-third]))
    return {"case": "sink_window_flat", "ratio": statistics.median(ratios), "ratios": ratios}


@dataclass(frozen=True)
class FilledContext(CleanPass):
    """The clean-pass loop, in which a given chunk's keys and values are random and its probe predicts nothing."""

    def take(self, rollout):
        real, session = rollout._model, rollout._session

        def write(x, sigma):
            if not session.chunk.given or not session.streams:      # the first forward makes the streams
                return real.write(x, sigma)
            for stream in session.streams.values():
                stream.forwards += 1
                for bank in stream.cache.banks:
                    for layer, k in enumerate(bank.k):
                        bank.write(layer, *torch.randn(2, 1, bank.length - bank.committed, *k.shape[2:]).to(k))

        rollout._model = Model(lambda x, sigma: x if session.chunk.given else real.predict(x, sigma), write, real.noise)
        yield from super().take(rollout)


def work(dim: int, ffn_dim: int, history: float) -> tuple[float, float]:
    """FLOPs of a token in one layer: linear (self q, k, v, o; cross q, o; both of the feed-forward), and attention over `history` rows."""
    return 2 * (6 * dim ** 2 + 2 * dim * ffn_dim), 4 * history * dim


def continuation() -> list[dict]:
    context, new, pairs = (48, 6, 1) if args.quick else (240, 6, 3)
    tokens, chunks = context * FRAME_TOKENS, context // CHUNK
    ffn_dim = round(tokens / LINEAR_TO_ATTENTION - 3 * DIM)
    model = tiny.tiny_model(weights=torch.bfloat16, dim=DIM, heads=1, layers=1, ffn_dim=ffn_dim)
    model.set_model_compute_dtype(torch.bfloat16)        # the host computes in fp32 on a CPU, where linear layers are half as fast
    noise, prefix = tiny.noise_of(context + new, HEIGHT, WIDTH), tiny.noise_of(context, HEIGHT, WIDTH, seed=4)
    whole = DeCoPrune.sink_chunks + DeCoPrune.dense_chunks
    keep = max(0., ((1 - PRUNE_RATIO) * chunks - whole) / (chunks - whole))

    def run(retention):
        told = []
        tiny.ours(model, noise, CHUNK, KVPolicy(retention, schedule=FilledContext()), prefix=prefix, on_stats=told.append)
        return told[0]

    def total(stats, phase=None, given=False) -> float:
        rows = [row for row in stats.chunks if row.given == given]
        return sum(row.seconds_by_phase.get(phase, 0) if phase else row.seconds for row in rows)

    cases = FullKV(), DeCoPrune("target_keep", target_keep=keep)
    both = []
    for pair in range(pairs):
        order = (0, 1) if pair % 2 else (1, 0)
        stats = {i: run(cases[i]) for i in order}
        both.append((stats[0], stats[1]))
        print(f"pair {pair + 1} of {pairs}: FullKV {total(stats[0]):.1f} s, DeCoPrune {total(stats[1]):.1f} s", flush=True)
    ratios, policy = [total(full) / total(pruned) for full, pruned in both], [pruned for _, pruned in both]
    own = CHUNK * FRAME_TOKENS
    linear, attention = work(DIM, ffn_dim, tokens)
    return [{"case": "decoprune_continuation", "speedup": statistics.median(ratios), "prune_ratio": policy[0].prune_ratio,
             "flops_speedup": sum(work(DIM, ffn_dim, tokens + own)) / sum(work(DIM, ffn_dim, tokens * (1 - policy[0].prune_ratio) + own)),
             "policy_share": statistics.median(total(stats, "policy") / total(stats) for stats in policy),
             "policy_context_seconds": statistics.median(total(stats, "policy", True) for stats in policy),
             "attention_over_linear": attention / linear, "backbone_14b": (lambda a, b: b / a)(*work(5120, 13824, tokens)),
             "dtype": policy[0].dtype, "threads": torch.get_num_threads(), "speedups": ratios}]


common.report("speed", continuation() if args.policy else [over_stock(), window_flat()])
