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
figure that matters). In t2v a chunk takes 4 steps
instead of the profile's 8, for time; DeCoPrune scores the step whose sigma is nearest .90, the
node's default (step 1 of 4: 1, .90, .75, .50; step 2 of 8). `decoprune_threshold`, by name, has
--gamma in place of the node's mode valley, .02 if it is not given: this world's scores fall into
two humps, what the model knew (around .001) and what it could not know (around .5), with a valley
at .02; the paper's .10, which belongs to another model's latents, cuts into the second. The model
runs in bfloat16, which halves the time on a CPU.

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
    add={"nargs": "*", "default": [], "help": "Python files with policies, see policies.py"},
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
from itertools import islice
from pathlib import Path
from time import perf_counter

import episodes as cmbench
import policies
import torch
from finished import Finished
from keepsake.kv_policies import DeCoPrune, KVPolicy
from recall_takes import STEPS, Job, by_episode, run_pair, sums, total
from support.intervals import interval

policies.add(args.add)
policies.VARIANTS["decoprune_threshold"] = KVPolicy(
    DeCoPrune(**{**policies.DEFAULTS, "mode": "threshold", "gamma": args.gamma})
)
QUICK = "full", "sink_window", "decoprune", "random"


def row_of(
    mode: str, task: str, name: str, takes: list[list[dict]], full: list[list[dict]] | None
) -> dict:
    """A line of the report; `takes` by episode and seed, `full` FullKV's."""
    ours, theirs, count = sums(takes, task), sums(full, task) if full else None, len(takes)
    row = {
        "mode": mode,
        "task": task,
        "policy": name,
        "recall": float(cmbench.recall_of(ours)),
        "ci95": interval(lambda pick: cmbench.recall_of(ours[pick]), count),
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
            "recall_over_full_ci95": interval(ratio, count),
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
    names = policies.chosen(args.policy, list(QUICK if args.quick else policies.RETAINING))
    cases = [(mode, name) for mode in args.mode for name in names]
    jobs = [
        Job(*case, pair, seed, args.context, args.new, args.steps or STEPS[case[0]])
        for case in cases
        for pair in range(args.episodes // 2)
        for seed in range(args.seeds)
    ]
    out = Path(args.out)
    finished, rows, full = Finished(out / "takes.jsonl", args.resume), [], {}
    running = finished.run(jobs, run_pair, args.jobs)
    for mode, name in cases:
        began = perf_counter()
        done = islice(running, args.episodes // 2 * args.seeds)
        takes = by_episode({job: finished[job] for job in done})
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
