"""An endless take of the demo world, streamed to a file: is memory flat, and the time a chunk
takes?

Slopes are of straight lines through the process's resident memory and its CPU seconds by chunk,
which other work on the machine disturbs less than the clock's; after the first quarter, in percent
of their means per 1,000 latent frames. Noise and latents of the whole take are allocated before;
what is measured is what comes with length.
"""

import statistics
import tempfile
import time

import _common as common

args = common.start(
    __doc__,
    lambda args: [common.SDPA],
    frames={"type": int, "default": 5000, "help": "latent frames of each take"},
    policy={"nargs": "*", "default": None, "help": "names of the table below"},
)


def slope(xs: list[float], ys: list[float]) -> float:
    """Percent of the mean of `ys`, per 1,000 of `xs`."""
    return 100 * 1000 * statistics.linear_regression(xs, ys).slope / statistics.mean(ys)


def watch(policy, frames: int) -> tuple[list[int], list[int], list[float]]:
    """Latent frames, resident bytes and CPU seconds, at each finished chunk of one take."""
    import psutil
    import torch
    from keepsake.demo.load import load_demo_world
    from keepsake.demo.world import camera_control
    from keepsake.host.files.growing_files import GrowingFiles, StreamToFile
    from keepsake.host.take import sampling
    from keepsake.host.take.take import sample_take

    model, clip, vae = load_demo_world()
    latent, rows, process, add = (
        {"samples": torch.zeros(1, 16, frames, 8, 16)},
        [],
        psutil.Process(),
        GrowingFiles.add,
    )
    control = camera_control(tuple(latent["samples"].shape), "pan right", frames, 0)

    def measured(self, latents):
        add(self, latents)
        rows.append((process.memory_info().rss, time.process_time()))

    GrowingFiles.add, sampling.tell_page = measured, lambda *a: None
    try:
        sample_take(
            model,
            clip.encode_from_tokens_scheduled(clip.tokenize("old town at day")),
            None,
            1.0,
            latent,
            seed=1,
            steps=1,
            policy=policy,
            control=control,
            stream=StreamToFile(vae, "endless", 16.0, 8, False),
            callback=lambda *a: None,
        )
    finally:
        GrowingFiles.add = add
    chunk = frames / len(rows)
    return (
        [chunk * (i + 1) for i in range(len(rows))],
        [rss for rss, _ in rows],
        [b[1] - a[1] for a, b in zip(rows, rows[1:])],
    )


def main():
    import folder_paths
    from keepsake.kv_policies import DeCoPrune, KVPolicy, SinkWindow

    folder_paths.set_output_directory(tempfile.mkdtemp())
    frames, rows = 90 if args.quick else args.frames, []
    policies = {
        "sink_window": KVPolicy(SinkWindow(3, 12)),
        "decoprune": KVPolicy(DeCoPrune(gamma=0.02, most_frames=12)),
    }
    for name in args.policy or policies:
        at, rss, seconds = watch(policies[name], frames)
        warm = len(at) // 4
        rows.append(
            {
                "policy": name,
                "frames": frames,
                "rss_slope_percent_per_1000": slope(at[warm:], rss[warm:]),
                "chunk_time_slope_percent_per_1000": slope(at[warm + 1 :], seconds[warm:]),
                "rss_mib": rss[-1] / 2**20,
                "cpu_seconds_per_chunk": statistics.median(seconds),
            }
        )
        print(", ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    common.report("endless", rows)


main()
