"""Does the take remember? About a minute of walking through the demo world, then a return.

The idea is that of CMBench (of the DeCoPrune paper, arXiv 2609.39096), the measure is ours: CMBench
compares DINOv2 features of a detected object or place. Its task *Reappear* (an object is to be
shown again) has no counterpart here.

mode prefix   the context is a drawn world, observed; truth is that world, through encoder and
              decoder
mode t2v      the model makes the context too, under the policy; truth is the take's own first visit
              of the same place
revisit       a place that has been out of view for at least 21 latent frames comes back; the whole
              picture is measured
landmark      the same frames, but only where a landmark stands. In t2v nobody drew one: there it is
              the crop, 5 cells wide, in which the first visit differs most from the stranger's

recall = 1 - sum of MSE(return, truth) / sum of MSE(return, stranger), over decoded key frames. The
stranger is the truth of another world under the same prompt and from the same camera: 1 is perfect
memory, a model that only knows the prompt has 0. ci95: half the width of the bootstrap interval
over episodes, all seeds of one together; recall_over_full, against the row `full`, is resampled in
pairs.

prune_ratio is that of the continuation, so is `speedup` (FullKV's seconds over the policy's; at
this size attention is a small part of the work, and `dev/bench speed --policy decoprune` has the
figure that matters). In t2v a chunk takes 4 steps instead of the profile's 8, for time; DeCoPrune
scores the step whose sigma is nearest .90, the node's default (step 1 of 4: 1, .90, .75, .50; step
2 of 8). `decoprune` and its controls have the node's defaults, mode valley among them: the
threshold is found from the take. `decoprune_threshold`, by name, has --gamma instead, .02 if it is
not given: this world's scores fall into two humps, what the model knew (around .001) and what it
could not know (around .5), with a valley at .02; the paper's .10, which belongs to another model's
latents, cuts into the second. The model runs in bfloat16, which halves the time on a CPU. Head map
and head table are the shipped ones; the table is a proxy, measured by drift of the latents
(`x0_drift`) and not by the paper's Distribution Matching loss.

By default the retention policies run. Also by name: `decoprune_threshold`; `full_reindexed` keeps
everything and squeezes the context's positions where the continuation begins, as DeCoPrune does;
`fp8`, `int8` and `int4` hold everything in fewer bits; `directed` (Directed Forcing with the
shipped table), `directed_uniform` (without), `directed_attention` and `directed_diversity` (lambda
1 and 0) read selected frames of a full cache; `clean_pass` (a window without a sink),
`flash_forward`, `in_flight` and `anchors` (without anchors, without history), `hiar`, `rolling` and
`krea` are other schedules. `image_error` is the mean squared error against the truth, `motion` the
mean absolute change from one measured frame to the next, over the truth's: 1 moves as much as it
should.
"""

import _common as common

args = common.start(
    __doc__,
    host_flags=lambda args: [common.SDPA, "--bf16-unet"],
    mode={"nargs": "*", "default": ["prefix", "t2v"], "choices": ["prefix", "t2v"]},
    episodes={"type": int, "default": 32},
    seeds={"type": int, "default": 3, "help": "of the noise, for each episode"},
    context={"type": int, "default": 162, "help": "latent frames before the continuation"},
    new={"type": int, "default": 15, "help": "latent frames of the continuation"},
    policy={"nargs": "*", "default": None, "help": "names of the POLICIES table"},
    gamma={
        "type": float,
        "default": 0.02,
        "help": "threshold of decoprune_threshold",
    },
    steps={"type": int, "default": 0, "help": "denoising steps; 0: 8 in prefix, 4 in t2v"},
    jobs={"type": int, "default": 2, "help": "processes, of one thread each"},
    out={
        "default": "output/recall",
        "help": "folder for the plot, and for the takes' figures in takes.jsonl",
    },
    resume={
        "action": "store_true",
        "help": "take what takes.jsonl already has instead of running it again",
    },
)
import json
import re
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import episodes as cmbench
import torch
from keepsake.demo import world
from keepsake.demo.load import load_demo_world
from keepsake.host.take.take import sample_take
from keepsake.kv_policies import (
    RETENTIONS,
    DeCoPrune,
    DeCoPruneHS,
    DirectedForcing,
    FullKV,
    HeadMap,
    HeadTable,
    KVPolicy,
    KVStorage,
    RandomPrune,
    ReversePrune,
    SinkWindow,
    TempDiffPrune,
)
from keepsake.nodes.policies.decoprune import PolicyDeCoPrune
from support.pack import ROOT

STEPS = {"prefix": 8, "t2v": 4}
FILES = ROOT / "demo/heads"
MAP = HeadMap.from_json((FILES / "kv_head_maps/demo_world.json").read_text(), "demo_world")
TABLE = HeadTable.from_json((FILES / "kv_head_tables/demo_world.json").read_text(), "demo_world")
DEFAULTS = {
    part.id: part.default
    for part in PolicyDeCoPrune.define_schema().inputs
    if "default" in part.as_dict()
}
PRUNING = {
    "full": FullKV(),
    "sink_window": SinkWindow(3, 21),
    "decoprune": DeCoPrune(**DEFAULTS),
    "random": RandomPrune(DeCoPrune(**DEFAULTS)),
    "decoprune_hs": DeCoPruneHS(**DEFAULTS, head_map=MAP),
    "reverse": ReversePrune(DeCoPrune(**DEFAULTS)),
    "temp_diff": TempDiffPrune(DeCoPrune(**DEFAULTS)),
}
for kind in RETENTIONS:
    if kind not in {type(retention) for retention in PRUNING.values()}:
        PRUNING[re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()] = kind()
QUICK = "full", "sink_window", "decoprune", "random"
READING = {
    "directed": DirectedForcing(head_table=TABLE),
    "directed_uniform": DirectedForcing(),
    "directed_attention": DirectedForcing(1.0, head_table=TABLE),
    "directed_diversity": DirectedForcing(0.0, head_table=TABLE),
}
POLICIES = {
    **{name: KVPolicy(retention) for name, retention in PRUNING.items()},
    "decoprune_threshold": KVPolicy(
        DeCoPrune(**{**DEFAULTS, "mode": "threshold", "gamma": args.gamma})
    ),
    "full_reindexed": KVPolicy(DeCoPrune(gamma=-1.0)),
    **{name: KVPolicy(FullKV(), selection) for name, selection in READING.items()},
    **{dtype: KVPolicy(storage=KVStorage(dtype)) for dtype in ("fp8", "int8", "int4")},
    **cmbench.SCHEDULES,
}


class Job(NamedTuple):
    """Both takes of a pair of episodes."""

    mode: str
    policy: str
    pair: int
    seed: int
    context: int  # latent frames, as `new`
    new: int
    steps: int

    @property
    def key(self) -> str:
        """Names the job in takes.jsonl, the policy's parameters included."""
        return f"{tuple(self)} {POLICIES[self.policy]}"


@cache
def parts():
    return load_demo_world()


@cache
def truth_of(number: int, member: int, context: int, new: int) -> torch.Tensor:
    """What the returns of a drawn world should show, `[N, 64, 128, 3]`."""
    pair = cmbench.plan_pair(number, context, new)
    return cmbench.decode(parts()[2], cmbench.drawn_latents(parts()[2], pair, member, pair.places))


def take_of(job: Job, pair: cmbench.Pair, member: int):
    """One take: its returns and their truth, both `[N, 64, 128, 3]`, and its stats."""
    (model, clip, vae), drawn = parts(), job.mode == "prefix"
    prefix = (
        {"samples": cmbench.drawn_latents(vae, pair, member, pair.walk[: job.context])[None]}
        if drawn
        else None
    )
    control = world.control(torch.tensor(pair.walk) + pair.origin).movedim(0, 1)[None].contiguous()
    positive = clip.encode_from_tokens_scheduled(
        clip.tokenize(world.prompt(pair.time, pair.district))
    )
    latent = {"samples": torch.zeros(1, 16, job.context + job.new, world.ROWS, world.COLUMNS)}
    out, stats = sample_take(
        model,
        positive,
        None,
        1.0,
        latent,
        seed=10000 * job.seed + 2 * job.pair + member,
        steps=job.steps,
        policy=POLICIES[job.policy],
        prefix=prefix,
        control=control,
    )
    latents = out["samples"][0]
    truth = (
        truth_of(job.pair, member, job.context, job.new)
        if drawn
        else cmbench.decode(vae, latents[:, [pair.walk.index(x) for x in pair.places]])
    )
    return cmbench.decode(vae, latents[:, pair.returns]), truth, stats


@torch.inference_mode()
def run_pair(job: Job) -> list[dict]:
    """What is known of each of the two takes: errors by task, and the continuation's tokens and
    seconds.
    """
    pair = cmbench.plan_pair(job.pair, job.context, job.new)
    takes, measured = [take_of(job, pair, member) for member in (0, 1)], []
    for member, (again, truth, stats) in enumerate(takes):
        stranger = takes[1 - member][1]
        landmarks = (
            pair.landmarks[member]
            if job.mode == "prefix"
            else [cmbench.most_unusual(truth, stranger, pair.places)]
        )
        rows = [row for row in stats.chunks if row.start_frame >= job.context]
        measured.append(
            {
                **cmbench.errors(again, truth, stranger, pair.places, landmarks),
                "motion": [cmbench.motion(again), cmbench.motion(truth)],
                "seconds": sum(row.seconds for row in rows),
                "kept": sum(row.kept_tokens for row in rows),
                "all": sum(row.full_tokens for row in rows),
            }
        )
    return measured


def row_of(
    mode: str, task: str, name: str, takes: list[list[dict]], full: list[list[dict]] | None
) -> dict:
    """A line of the report; `takes` by episode and seed, `full` FullKV's."""

    def sums(of):
        return torch.tensor(
            [[take[task] for take in episode] for episode in of], dtype=torch.float64
        ).sum(1)

    def total(of, what):
        return sum(take[what] for episode in of for take in episode)

    ours, theirs, count = sums(takes), sums(full) if full else None, len(takes)
    row = {
        "mode": mode,
        "task": task,
        "policy": name,
        "recall": float(cmbench.recall_of(ours)),
        "ci95": cmbench.interval(lambda pick: cmbench.recall_of(ours[pick]), count),
        "recall_over_full": None,
        "recall_over_full_ci95": None,
        "image_error": float(ours[..., 0].sum() / count / len(takes[0])),
        "motion": sum(take["motion"][0] for episode in takes for take in episode)
        / sum(take["motion"][1] for episode in takes for take in episode),
        "prune_ratio": 1 - total(takes, "kept") / total(takes, "all"),
        "speedup": None,
        "episodes": count,
        "seeds": len(takes[0]),
    }
    if full:

        def ratio(pick):
            return cmbench.recall_of(ours[pick]) / cmbench.recall_of(theirs[pick])

        row |= {
            "recall_over_full": float(ratio(torch.arange(count))),
            "recall_over_full_ci95": cmbench.interval(ratio, count),
            "speedup": total(full, "seconds") / total(takes, "seconds"),
        }
    return row | {"errors_by_episode": [[take[task] for take in episode] for episode in takes]}


def plot(rows: list[dict], path: Path):
    """Recall against prune ratio, one panel for each mode and task."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys((row["mode"], row["task"]) for row in rows))
    figure = Figure(figsize=(5 * len(panels), 4.5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    names = list(dict.fromkeys(row["policy"] for row in rows))
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        for row in (row for row in rows if (row["mode"], row["task"]) == panel):
            number = names.index(row["policy"])
            axes.errorbar(
                100 * row["prune_ratio"],
                row["recall"],
                row["ci95"],
                fmt="osD^v<>P"[number % 8],
                color=f"C{number}",
                capsize=3,
                label=row["policy"],
            )
        axes.set(
            title=", ".join(panel),
            xlabel="history tokens pruned, %",
            ylabel="recall",
            xlim=(-5, 105),
        )
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize="small", loc="lower left")
    figure.savefig(path)


def main():
    if args.quick:
        args.episodes, args.seeds, args.context, args.new = 2, 1, 48, 12
    if args.episodes % 2:
        raise SystemExit(
            f"--episodes is {args.episodes}; worlds are compared in pairs, so give an even number."
        )
    if unknown := [name for name in args.policy or () if name not in POLICIES]:
        raise SystemExit(f"--policy got {', '.join(unknown)}. Use some of: {', '.join(POLICIES)}.")
    cases = [
        (mode, name)
        for mode in args.mode
        for name in args.policy or (QUICK if args.quick else PRUNING)
    ]
    jobs = {
        case: [
            Job(*case, pair, seed, args.context, args.new, args.steps or STEPS[case[0]])
            for pair in range(args.episodes // 2)
            for seed in range(args.seeds)
        ]
        for case in cases
    }
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    log, done, rows, full = out / "takes.jsonl", {}, [], {}
    if args.resume and log.exists():
        done = dict(map(json.loads, log.read_text().splitlines()))
    with (
        log.open("a" if args.resume else "w") as file,
        ProcessPoolExecutor(args.jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool,
    ):
        results = pool.map(
            run_pair, [job for case in cases for job in jobs[case] if job.key not in done]
        )
        for mode, name in cases:
            began = perf_counter()
            for job in jobs[mode, name]:
                if job.key not in done:
                    done[job.key] = next(results)
                    print(json.dumps([job.key, done[job.key]]), file=file, flush=True)
            by_pair = [
                [done[job.key] for job in jobs[mode, name] if job.pair == pair]
                for pair in range(args.episodes // 2)
            ]
            takes = [
                [measured[member] for measured in seeds] for seeds in by_pair for member in (0, 1)
            ]
            if name == "full":
                full[mode] = takes
            rows += [
                row_of(mode, task, name, takes, full.get(mode)) for task in ("revisit", "landmark")
            ]
            measured = ", ".join(
                f"{row['task']} {row['recall']:.3f} +- {row['ci95']:.3f}" for row in rows[-2:]
            )
            print(
                f"{mode}, {name}: {measured}, pruned {rows[-1]['prune_ratio']:.1%} "
                f"({perf_counter() - began:.0f} s)",
                flush=True,
            )
    plot(rows, out / "recall.png")
    print(f"Plot: {out / 'recall.png'}")
    common.report("recall", rows, context=args.context, new=args.new, gap=cmbench.GAP)


if __name__ == "__main__":
    main()
