"""Peak memory of a take: the process's high-water mark over its level before sampling, each case in a process of its own.

`full_kv_over_stock`: the same take in the stock AR sampler and in ours. `sink_window_long_over_short`: four times the length.
"""
import json
import resource
import statistics
import subprocess
import sys

import common

args = common.start(__doc__, case={"help": "run one case in this process and print its peak; used by the bench itself"},
                    frames={"type": int, "default": 0})


def peak_of(case: str, frames: int) -> int:
    """Bytes, from a fresh process."""
    line = subprocess.run([sys.executable, __file__, "--case", case, "--frames", str(frames)], check=True, capture_output=True, text=True)
    return json.loads(line.stdout.splitlines()[-1])


def run_case(case: str, frames: int):
    import tiny
    from keepsake.kv_policies import KVPolicy, SinkWindow

    model = tiny.tiny_model(dim=256, heads=4, layers=4)
    noise, short = tiny.noise_of(frames, 24, 32), tiny.noise_of(6, 24, 32)
    sample = {"stock": tiny.stock, "full_kv": tiny.ours, "sink_window": lambda *a, **k: tiny.ours(*a, KVPolicy(SinkWindow(3, 12)), **k)}[case]
    sample(model, short, 3, steps=1)             # what a first run costs for good is not the take's
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sample(model, noise, 3, steps=1)
    print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))


if args.case:
    run_case(args.case, args.frames)
else:
    frames, repeats = (60, 1) if args.quick else (150, 3)
    stock, full = (statistics.median(peak_of(case, frames) for _ in range(repeats)) for case in ("stock", "full_kv"))
    short, long = (statistics.median(peak_of("sink_window", n) for _ in range(repeats)) for n in (frames, 4 * frames))
    common.report("memory", [{"case": "full_kv_over_stock", "ratio": full / stock, "peak_bytes": full},
                             {"case": "sink_window_over_full_kv", "ratio": short / full, "peak_bytes": short},
                             {"case": "sink_window_long_over_short", "ratio": long / max(short, 1), "peak_bytes": long}])
