"""How long a take would be on several devices: a simulation over the schedules' own dependency
graphs, from measured times.

81 latent frames of the demo world in chunks of 3, 4 steps. One device runs each order for real and
gives the processor seconds of a forward by kind; then the graph is walked with every forward on its
lane's device, as the sampler spreads lanes: neighbouring stages together, the planner on a device
of its own once there are as many as lanes. `--transfer` is added wherever a forward waits for one
on another device. The clean-pass loop is sequential, so more devices do not help it; HiAR gets as
many as FlashForward.

The paper (arXiv 2609.32540) reports, with real devices, 1.42 to 2.92 over the clean-pass loop and
1.16 to 1.69 over HiAR on up to four.
"""

import statistics
from collections import defaultdict
from time import process_time
from typing import NamedTuple

import _common as common

args = common.start(
    __doc__,
    host_flags=lambda args: [common.SDPA],
    transfer={"type": float, "default": 0.0, "help": "seconds"},
    repeats={"type": int, "default": 3},
)
import torch
from keepsake.demo import world
from keepsake.demo.load import load_demo_world
from keepsake.host.take.take import sample_take
from keepsake.kv_policies import CleanPass, FlashForward, Hierarchical, KVPolicy, SinkWindow
from keepsake.kv_policies.schedule.flash_forward import Work
from keepsake.rollout import trace
from keepsake.rollout.chunks import plan_chunks
from keepsake.rollout.walk import spread

# Other work on the machine does not count: processor seconds of a single thread, since threads that
# wait for each other spend them, too.
trace.perf_counter = process_time
torch.set_num_threads(1)
FRAMES, CHUNK, STEPS = (27, 3, 4) if args.quick else (81, 3, 4)
PAPER = {"clean": "1.42 to 2.92", "hiar": "1.16 to 1.69"}


class Forwards(NamedTuple):
    """How many forwards of each kind a take has, or the seconds of one."""

    denoise: float
    write: float  # into the history: the clean pass, HiAR's write, FlashForward's anchors


def seconds_of_forwards(
    policies: dict[str, KVPolicy], counts: dict[str, Forwards]
) -> dict[str, Forwards]:
    """Median processor seconds of a forward under each policy. The policies take turns, so that
    whatever else the machine does slows all of them alike.
    """
    parts = load_demo_world()
    measured = {name: [] for name in policies}
    for _ in range(args.repeats):
        for name, policy in policies.items():
            seconds = seconds_by_phase(parts, policy)
            denoise = seconds["denoise"] / counts[name].denoise
            measured[name].append((denoise, seconds["clean"] / counts[name].write))
    return {
        name: Forwards(*map(statistics.median, zip(*takes))) for name, takes in measured.items()
    }


def seconds_by_phase(parts, policy: KVPolicy) -> dict[str, float]:
    model, clip, _ = parts
    latent = {"samples": torch.zeros(1, 16, FRAMES, world.ROWS, world.COLUMNS)}
    control = world.camera_control(latent["samples"].shape, "go and return", FRAMES // 2, 0)
    positive = clip.encode_from_tokens_scheduled(clip.tokenize("downtown at day"))
    _, stats = sample_take(
        model, positive, None, 1.0, latent, seed=1, steps=STEPS, policy=policy, control=control
    )
    phases = defaultdict(float)
    for row in stats.chunks:
        for name, seconds in row.seconds_by_phase.items():
            phases[name] += seconds
    return phases


def makespan(graph, seconds, devices: int) -> float:
    """When the last forward ends if each runs on its lane's device as soon as what it needs is
    there; in the graph's order on each device.
    """
    free, ends, device = defaultdict(float), {}, spread(graph, devices)
    for work, needs in graph.items():
        here = device[work.lane]
        ready = max(
            (ends[need] + args.transfer * (device[need.lane] != here) for need in needs),
            default=0.0,
        )
        ends[work] = free[here] = max(free[here], ready) + seconds(work)
    return max(ends.values())


def hiar_graph(chunks: int) -> dict[Work, tuple[Work, ...]]:
    """Step k of chunk i, its write included, needs (i, k - 1) and (i - 1, k)."""
    return {
        Work("render", i, k): tuple(
            Work("render", *before) for before in ((i, k - 1), (i - 1, k)) if min(before) >= 0
        )
        for i in range(chunks)
        for k in range(STEPS)
    }


def main():
    chunks, schedule = plan_chunks(FRAMES, CHUNK), FlashForward()
    graph = schedule.graph(chunks, STEPS)
    count, anchors = len(chunks), sum(work.kind == "anchor" for work in graph)
    policies = {
        "clean": KVPolicy(SinkWindow(0, 21), schedule=CleanPass()),
        "hiar": KVPolicy(schedule=Hierarchical()),
        "flash": KVPolicy(schedule=schedule),
    }
    # The last chunk is not written.
    counts = {
        "clean": Forwards(count * STEPS, count - 1),
        "hiar": Forwards(count * STEPS, (count - 1) * STEPS),
        "flash": Forwards(len(graph) - anchors, anchors),
    }
    seconds = seconds_of_forwards(policies, counts)
    clean, hiar, flash = seconds["clean"], seconds["hiar"], seconds["flash"]

    def flash_seconds(work):
        return flash.write if work.kind == "anchor" else flash.denoise

    def hiar_seconds(work):
        return hiar.denoise + hiar.write * (work.number < count - 1)

    loop = sum(number * each for number, each in zip(counts["clean"], clean))
    rows = []
    for devices in range(1, STEPS + 2):
        ours = makespan(graph, flash_seconds, devices)
        theirs = makespan(hiar_graph(count), hiar_seconds, devices)
        rows.append(
            {
                "devices": devices,
                "speedup_over_clean_pass": loop / ours,
                "paper_over_clean_pass": PAPER["clean"],
                "speedup_over_hiar": theirs / ours,
                "paper_over_hiar": PAPER["hiar"],
                "seconds": ours,
            }
        )
    common.report(
        "pipeline",
        rows,
        forwards=len(graph),
        forward_seconds={
            "clean-pass loop": clean.denoise,
            "its clean pass": clean.write,
            "HiAR": hiar.denoise,
            "its write": hiar.write,
            "FlashForward": flash.denoise,
            "its anchors": flash.write,
        },
    )


main()
