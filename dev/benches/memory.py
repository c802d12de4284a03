"""Peak memory of a take: the process's high-water mark over its level before sampling, each case in
a process of its own.

`full_kv_over_stock`          the same take in the stock AR sampler and in ours
`sink_window_over_full_kv`    the same take with a window of 12 frames
`sink_window_long_over_short` four times the length; noise and latents of the whole take grow with
it
`sink_window_cache_long_over_short`   the same two takes, the KV cache alone
"""

import json
import resource
import statistics
import subprocess
import sys

import _common as common

args = common.start(
    __doc__,
    case={"help": "run one case in this process and print its peaks; used by the bench itself"},
    frames={"type": int, "default": 0},
)


def peaks_of(case: str, frames: int, repeats: int) -> tuple[int, int]:
    """Median bytes of the process and of the cache, from fresh processes."""
    runs = [
        subprocess.run(
            [sys.executable, __file__, "--case", case, "--frames", str(frames)],
            check=True,
            capture_output=True,
            text=True,
        )
        for _ in range(repeats)
    ]
    return tuple(
        statistics.median(side)
        for side in zip(*(json.loads(run.stdout.splitlines()[-1]) for run in runs))
    )


def run_case(case: str, frames: int):
    from keepsake.kv_policies import KVPolicy, SinkWindow
    from support import tiny

    model, stats = tiny.tiny_model(dim=256, heads=4, layers=4), []
    policy = KVPolicy(SinkWindow(3, 12)) if case == "sink_window" else KVPolicy()

    def sample(noise):
        if case == "stock":
            tiny.stock(model, noise, 3, steps=1)
        else:
            tiny.ours(model, noise, 3, policy, steps=1, on_stats=stats.append)

    sample(tiny.noise_of(6, 24, 32))  # what a first run costs for good is not the take's
    noise = tiny.noise_of(frames, 24, 32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sample(noise)
    print(
        json.dumps(
            [
                1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before),
                stats[-1].peak_cache_bytes if stats else 0,
            ]
        )
    )


def main():
    frames, repeats = (60, 1) if args.quick else (150, 3)
    (stock, _), (full, _) = peaks_of("stock", frames, repeats), peaks_of("full_kv", frames, repeats)
    (short, short_cache), (long, long_cache) = (
        peaks_of("sink_window", n, repeats) for n in (frames, 4 * frames)
    )
    common.report(
        "memory",
        [
            {"case": "full_kv_over_stock", "ratio": full / stock, "peak_bytes": full},
            {"case": "sink_window_over_full_kv", "ratio": short / full, "peak_bytes": short},
            {"case": "sink_window_long_over_short", "ratio": long / short, "peak_bytes": long},
            {
                "case": "sink_window_cache_long_over_short",
                "ratio": long_cache / short_cache,
                "peak_bytes": long_cache,
            },
        ],
    )


if args.case:
    run_case(args.case, args.frames)
else:
    main()
