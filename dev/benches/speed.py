"""Wall time of ours over the stock AR sampler's, alternated in one process, and whether a window's time per chunk stays flat.

`full_kv_over_stock`: same model, noise and threads; the ratio of each pair of runs, and their median.
`sink_window_flat`: median seconds of the last third of the chunks over those of the chunks from the 30th on to there.
"""
import statistics
import time

import _common as common

args = common.start(__doc__)
import tiny  # noqa: E402
from keepsake.kv_policies import KVPolicy, SinkWindow  # noqa: E402


def seconds(function, *arguments, **options) -> float:
    began = time.perf_counter()
    function(*arguments, **options)
    return time.perf_counter() - began


pairs = 3 if args.quick else 9
frames = 9 if args.quick else 15
model = tiny.tiny_model(dim=256, heads=4, layers=4)
noise = tiny.noise_of(frames, 24, 32)
prepared = tiny.prepared(model)
tiny.stock(model, noise, 3), tiny.ours(model, noise, 3)
ratios = []
for pair in range(pairs):
    if pair % 2:                     # each goes first as often: caches and clocks favour the second
        ours = seconds(tiny.ours, model, noise, 3)
        stock = seconds(tiny.stock, prepared, noise, 3)
    else:
        stock = seconds(tiny.stock, prepared, noise, 3)
        ours = seconds(tiny.ours, model, noise, 3)
    ratios.append(ours / stock)
rows = [{"case": "full_kv_over_stock", "ratio": statistics.median(ratios), "ratios": ratios}]

ratios = []
for _ in range(1 if args.quick else 3):
    stats = []
    tiny.ours(model, tiny.noise_of(180 if args.quick else 300, 8, 8), 3, KVPolicy(SinkWindow(3, 21)), on_stats=stats.append)
    chunk_seconds = [row.seconds for row in stats[0].chunks[30:-1]]
    third = len(chunk_seconds) // 3
    ratios.append(statistics.median(chunk_seconds[-third:]) / statistics.median(chunk_seconds[:-third]))
rows.append({"case": "sink_window_flat", "ratio": statistics.median(ratios), "ratios": ratios})
common.report("speed", rows)
