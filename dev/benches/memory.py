"""Peak memory of a take: the process's highest resident size over its size before sampling, each
case in a process of its own (Linux).

`full_kv_over_stock`          the same take in the stock AR sampler and in ours
`sink_window_over_full_kv`    the same take with a window of 12 frames
`sink_window_long_over_short` four times the length; noise and latents of the whole take grow with
it
`sink_window_cache_long_over_short`   the same two takes, the KV cache alone

Attention is PyTorch's, which makes no matrix of scores, so that what is held is most of the peak.
glibc gives each freed tensor back at once, or its caches would be up to 3 % of a peak and differ
from run to run.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import _common as common

args = common.start(
    __doc__,
    host_flags=lambda args: [common.SDPA],
    case={"help": "run one case in this process and print its peaks; used by the bench itself"},
    frames={"type": int, "default": 0},
)

GIVE_BACK_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": str(64 * 1024), "MALLOC_ARENA_MAX": "1"}


def peaks_of(case: str, frames: int, repeats: int) -> tuple[int, int]:
    """Median bytes of the process and of the cache, from fresh processes."""
    command = [sys.executable, __file__, "--case", case, "--frames", str(frames)]
    runs = []
    for _ in range(repeats):
        run = subprocess.run(
            command,
            env=os.environ | GIVE_BACK_AT_ONCE,
            check=True,
            capture_output=True,
            text=True,
        )
        runs.append(json.loads(run.stdout.splitlines()[-1]))
    process, cache = (statistics.median(side) for side in zip(*runs))
    return process, cache


def resident(field: str) -> int:
    """Bytes of this process: `VmRSS` now, `VmHWM` at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise LookupError(f"/proc/self/status has no {field}; this bench needs Linux.")


def run_case(case: str, frames: int):
    from keepsake.kv_policies import KVPolicy, SinkWindow
    from support import tiny

    model = tiny.tiny_model(dim=256, heads=4, layers=4)
    policy = KVPolicy(SinkWindow(3, 12)) if case == "sink_window" else KVPolicy()
    stats = []

    def sample(noise):
        if case == "stock":
            tiny.stock(model, noise, 3, steps=1)
        else:
            tiny.ours(model, noise, 3, policy, steps=1, on_stats=stats.append)

    sample(tiny.noise_of(6, 24, 32))  # what a first run costs for good is not the take's
    noise = tiny.noise_of(frames, 24, 32)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
    before = resident("VmRSS")
    sample(noise)
    peak = resident("VmHWM") - before
    print(json.dumps([peak, stats[-1].peak_cache_bytes if stats else 0]))


def main():
    frames, repeats = (60, 1) if args.quick else (90, 3)
    stock, _ = peaks_of("stock", frames, repeats)
    full, _ = peaks_of("full_kv", frames, repeats)
    short, short_cache = peaks_of("sink_window", frames, 1)
    long, long_cache = peaks_of("sink_window", 4 * frames, 1)
    ratios = {
        "full_kv_over_stock": (full, stock),
        "sink_window_over_full_kv": (short, full),
        "sink_window_long_over_short": (long, short),
        "sink_window_cache_long_over_short": (long_cache, short_cache),
    }
    common.report(
        "memory",
        [
            {"case": case, "ratio": ours / other, "peak_bytes": ours}
            for case, (ours, other) in ratios.items()
        ],
    )


if args.case:
    run_case(args.case, args.frames)
else:
    main()
