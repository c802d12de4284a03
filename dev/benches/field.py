"""The whole field on one sheet: what every policy recalls, holds, reads and costs, in one run.

recall      of a given walk of about a minute: 1 when a place that was out of view returns as it
            was, 0 when it returns no closer than another town (the `revisit` of `dev/bench
            recall`), with the 95 % interval over episodes; own_recall: of a walk that the model
            made itself
bytes_share bytes of keys and values that are held while the given walk goes on, of Full's, a mean
            over the chunks; what a schedule holds for each step counts, room that is kept free does
            not. On a CPU the cache is in 32 bits, beside which coded storages look smaller
read_share  tokens that a query reads there, its own chunk's included, of Full's
speedup     Full's seconds of a chunk over the policy's, at 1560 tokens a frame after a context of
            60 latent frames, with random weights in two layers of two heads (`field_speed.py`);
            medians over the rounds, in each of which all policies run in turn
drift       of takes with a camera that stands still, the last frames' error against the first: 0 is
            a still picture, 1 another town (`dev/bench drift`)
seam        of takes with a camera that walks, the error from chunk to chunk

Each of the four stages (given, own, drift, speed) has its jobs; what is finished lies in
OUT/finished.jsonl. --resume goes on from it. --only STAGE runs these stages alone and takes the
others from the file, as far as they are there: the speed of a machine that is quiet later fills the
same rows. Of all that is measured, only speed asks for a quiet machine.

The rows stand in `policies.py`; a policy that is new in the pack takes part by itself. --add FILE
adds the rows that a file of another pack defines (`dev/recipes/field_policy.py`). OUT/field.md has
the table, OUT/field.png recall over bytes.
"""

import _common as common

STAGES = "given", "own", "drift", "speed"
args = common.start(
    __doc__,
    host_flags=lambda args: [common.SDPA, "--bf16-unet"],
    quick="smaller takes, in under five minutes",
    policy={"nargs": "*", "default": None, "help": "names of policies.py; `full` is added"},
    add={"nargs": "*", "default": [], "help": "Python files that define POLICIES"},
    only={"nargs": "*", "default": [], "choices": STAGES, "help": "stages to run, for --resume"},
    resume={"action": "store_true", "help": "go on with what OUT/finished.jsonl has"},
    episodes={"type": int, "default": 16, "help": "walks; an even number"},
    seeds={"type": int, "default": 1, "help": "of the noise, for each walk"},
    takes={"type": int, "default": 8, "help": "for drift and seam each; an even number"},
    rounds={"type": int, "default": 2, "help": "of the speed stage"},
    jobs={"type": int, "default": 2, "help": "processes, of one thread each"},
    out={"default": "output/field", "help": "folder for the table, the plot and what is finished"},
)
import statistics
from functools import partial
from pathlib import Path
from typing import NamedTuple

import drift_takes
import episodes as cmbench
import field_plot
import field_speed
import policies
import recall_takes
import torch
from finished import Finished
from keepsake.kv_policies import KVPolicy
from support.intervals import bounds

policies.add(args.add)
MODES = {"given": "prefix", "own": "t2v"}  # of the recall bench, by stage


class Sizes(NamedTuple):
    """Latent frames of the takes, and the latents' size in the speed stage."""

    context: int = 162
    new: int = 15
    drift_frames: int = 81
    speed_context: int = 60
    speed_new: int = 6
    height: int = 60
    width: int = 104


QUICK = Sizes(48, 12, 24, 24, 6, 12, 20)


def jobs_of(stage: str, name: str, sizes: Sizes) -> list:
    """What is to be done for one policy."""
    if mode := MODES.get(stage):
        steps = recall_takes.STEPS[mode]
        return [
            recall_takes.Job(mode, name, pair, seed, sizes.context, sizes.new, steps)
            for pair in range(args.episodes // 2)
            for seed in range(args.seeds)
        ]
    if stage == "drift":
        return [
            drift_takes.Job(name, pair, sizes.drift_frames, steps=4)
            for pair in range(args.takes // 2)
        ]
    return [field_speed.Job(name, number, *sizes[3:]) for number in range(args.rounds)]


def work(job) -> list[dict]:
    """Both takes of a pair, in a process of its own."""
    run = drift_takes.run_pair if isinstance(job, drift_takes.Job) else recall_takes.run_pair
    return run(job)


def given_cells(finished: Finished, jobs: list[recall_takes.Job]) -> dict[str, float]:
    """Recall with its interval, and what was held and read."""
    takes = takes_of(finished, jobs)
    total = partial(recall_takes.total, takes)
    return {
        **with_bounds("recall", takes),
        "bytes_share": total("bytes") / total("all_bytes"),
        "read_share": total("read") / total("all_read"),
    }


def own_cells(finished: Finished, jobs: list[recall_takes.Job]) -> dict[str, float]:
    return with_bounds("own_recall", takes_of(finished, jobs))


def takes_of(finished: Finished, jobs: list[recall_takes.Job]) -> list[list[dict]]:
    return recall_takes.by_episode({job: finished[job] for job in jobs})


def with_bounds(column: str, takes: list[list[dict]]) -> dict[str, float]:
    sums = recall_takes.sums(takes, "revisit")
    low, high = bounds(lambda pick: cmbench.recall_of(sums[pick]), len(takes))
    recall = float(cmbench.recall_of(sums))
    return {column: recall, f"{column}_low": low, f"{column}_high": high}


def drift_cells(finished: Finished, jobs: list[drift_takes.Job]) -> dict[str, float]:
    takes = [take for job in jobs for take in finished[job]]
    every = torch.arange(len(takes))
    return {what: float(drift_takes.ratios(takes, what, every)) for what in ("drift", "seam")}


def speed_cells(finished: Finished, jobs: list[field_speed.Job]) -> dict[str, float]:
    ratios = [finished[job._replace(policy="full")] / finished[job] for job in jobs]
    return {"speedup": statistics.median(ratios)}


CELLS = {"given": given_cells, "own": own_cells, "drift": drift_cells, "speed": speed_cells}
COLUMNS = (
    "recall recall_low recall_high bytes_share read_share speedup drift seam "
    "own_recall own_recall_low own_recall_high"
).split()


def row_of(name: str, finished: Finished, sizes: Sizes) -> dict:
    """A line of the report; None where a stage is not finished."""
    row = {"policy": name, **dict.fromkeys(COLUMNS)}
    for stage, cells in CELLS.items():
        jobs = jobs_of(stage, name, sizes)
        needed = jobs + (jobs_of(stage, "full", sizes) if stage == "speed" else [])
        if all(job in finished for job in needed):
            row |= cells(finished, jobs)
    return row


def slot_of(policy: KVPolicy) -> str:
    """The slot that makes a policy what it is, retention where several do."""
    plain, described = KVPolicy().describe(), policy.describe()
    others = [slot for slot in field_plot.SLOTS if described[slot] != plain[slot]]
    return others[0] if others else "retention"


def run_takes(names: list[str], stages: list[str], sizes: Sizes, finished: Finished):
    """The stages whose takes run side by side, policy by policy."""
    jobs = [job for name in names for stage in stages for job in jobs_of(stage, name, sizes)]
    left = {name: sum(job.policy == name for job in jobs) for name in names}
    for job in finished.run(jobs, work, args.jobs):
        left[job.policy] -= 1
        if not left[job.policy]:
            print(line_of(row_of(job.policy, finished, sizes)), flush=True)


def run_speed(names: list[str], sizes: Sizes, finished: Finished):
    """The speed stage: alone on the machine, all policies in turn in each round."""
    jobs = [jobs_of("speed", name, sizes)[i] for i in range(args.rounds) for name in names]
    missing = [job for job in jobs if job not in finished]
    if not missing:
        return
    model = field_speed.model()
    first = missing[0]._replace(policy="full", context=3, new=3)
    field_speed.seconds(model, first)  # what a first run costs for good is not the policy's
    for job in missing:
        finished.add(job, field_speed.seconds(model, job))
        print(f"{job.policy}, round {job.round + 1}: {finished[job]:.1f} s", flush=True)


def line_of(row: dict) -> str:
    cells = [f"{key} {row[key]:.3g}" for key in COLUMNS if row[key] is not None]
    return f"{row['policy']}: {', '.join(cells)}"


def table(rows: list[dict]) -> str:
    """The rows in Markdown, the interval as half its width."""

    def number(value: float | None, form: str) -> str:
        text = "" if value is None else format(value, form)
        return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text

    def with_interval(row: dict, key: str) -> str:
        if row[key] is None:
            return ""
        half = (row[f"{key}_high"] - row[f"{key}_low"]) / 2
        return f"{number(row[key], '.3f')} ± {number(half, '.3f')}"

    lines = [
        "| policy | recall, given walk | own walk | bytes | read | speedup | drift | seam |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        cells = [
            row["policy"].replace("_", " "),
            with_interval(row, "recall"),
            with_interval(row, "own_recall"),
            *(number(row[key], ".3f") for key in ("bytes_share", "read_share")),
            number(row["speedup"], ".2f"),
            *(number(row[key], ".3g") for key in ("drift", "seam")),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main():
    # 1. What to run.
    sizes = QUICK if args.quick else Sizes()
    if args.quick:
        args.episodes, args.seeds, args.takes, args.rounds = 2, 1, 2, 1
    if args.episodes % 2 or args.takes % 2:
        raise SystemExit(
            f"--episodes is {args.episodes} and --takes {args.takes}; both are compared in pairs, "
            "so give even numbers."
        )
    names = policies.chosen(args.policy, list(policies.POLICIES))
    names = list(dict.fromkeys(["full", *names]))
    stages = args.only or STAGES
    out = Path(args.out)
    finished = Finished(out / "finished.jsonl", args.resume or bool(args.only))
    # 2. Run it.
    run_takes(names, [stage for stage in stages if stage != "speed"], sizes, finished)
    if "speed" in stages:
        run_speed(names, sizes, finished)
    # 3. Report it.
    rows = [row_of(name, finished, sizes) for name in names]
    (out / "field.md").write_text(table(rows), encoding="utf-8")
    slots = {name: slot_of(policies.known()[name]) for name in names}
    field_plot.draw(rows, slots, out / "field.png")
    print(f"Table and plot: {out / 'field.md'}, {out / 'field.png'}")
    common.report("field", rows, episodes=args.episodes, takes=args.takes, **sizes._asdict())


if __name__ == "__main__":
    main()
