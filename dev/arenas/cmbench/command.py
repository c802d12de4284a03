"""`dev/bench cmbench` from its flags to its table."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from keepsake.host.model.file_names import rows_named
from keepsake.host.model.published import PROFILES

from ..camera import STILL, camera_words
from ..checks import check_takes
from ..flags import read_size
from ..graphs import rows_of, use_model_folders
from ..maker import Maker
from ..node_run import NodeRun
from ..records import measured_hours
from ..results import Job, Results, Unwritable, first_line, work_through
from .dry import assumption, dry_row, given_frames
from .export import Export
from .flags import FLAGS
from .scores import Folders, score
from .source import probe
from .table import table
from .takes import Contexts, Protocol, chunk_frames_of, take_of
from .tasks import Task, by_video, read_tasks

AS_RELEASED, AS_CMBENCH = "LingBot-World v2", "LingBot-World v2 (CMBench)"
Say = Callable[[str], None]


def run(args, say: Say = print) -> tuple[list[dict], list[str]]:
    """The table's rows, and the names of takes that failed. ValueError, in sentences, for what is
    wrong with flags, data or graph, before any work.
    """
    # 1. What is asked for.
    use_model_folders()
    data = Path(args.data) if args.data else None
    if data is None and not args.dry_run:
        raise ValueError("--data is not given: the folder of CMBench, with metadata.jsonl in it.")
    tasks = read_tasks(data, args.tasks) if data else []
    seeds = read_seeds(args.seeds)
    if args.quick:
        tasks, seeds = tasks[:2], seeds[:1]
    protocol = read_protocol(args)
    folders = Folders(*(Path(name) if name else None for name in (args.dino, args.owl, args.sam)))
    folders.check()
    if args.profile == FLAGS["profile"]["default"]:
        args.profile = own_profile(args.checkpoint, args.profile)
    nodes = NodeRun()
    makers = [Maker(row, nodes) for row in rows_of(args)]
    # 2. Without weights: what it will come to.
    if args.dry_run:
        rows = [dry_row(maker, tasks, len(seeds), protocol, args.tflops) for maker in makers]
        for row, maker in zip(rows, makers):
            folder = Path(args.out) / maker.row.name
            names = [take_name(task, seed) for task in tasks for seed in seeds]
            row["hours_as_measured"] = measured_hours(folder, names)
        say(assumption(args.tflops, bool(tasks)))
        return rows, []
    # 3. The takes, once it is known that they can be made, measured and exported.
    folders.load()
    exported = Export(Path(args.export), data, tasks) if args.export else None
    for maker in makers:
        check(maker, tasks, protocol)
    results = {
        maker.row.name: Results(Path(args.out) / maker.row.name, maker.row.settings(protocol))
        for maker in makers
    }
    failed = work_through(jobs_of(makers, results, tasks, seeds, protocol), say)
    # 4. What they show, and for whom.
    there = [
        (name, task, seed)
        for name in results
        for task in tasks
        for seed in seeds
        if results[name].has(take_name(task, seed))
    ]
    for name, task, seed in there:
        try:
            score(results[name], take_name(task, seed), task, folders)
        except Unwritable:
            raise
        except Exception as error:  # the next take may be another matter
            say(
                f"{name}/{take_name(task, seed)} is NOT MEASURED ({first_line(error)}), and its "
                "row has no such column below."
            )
    if exported:
        say(exported.add(results, seeds))
    # 5. The table.
    records: dict[str, dict[str, list[dict]]] = {name: {} for name in results}
    for name, task, seed in there:
        record = results[name].read(take_name(task, seed))
        records[name].setdefault(task.name, []).append(record)
    return table(records), [job.label for job in failed]


def check(maker: Maker, tasks: list[Task], protocol: Protocol):
    """Load what makes a row's takes. ValueError, in a sentence, where it can make none of them."""
    maker.load()
    chunk_frames = chunk_frames_of(maker)
    given = {given_frames(probe(video), chunk_frames) for video in {task.video for task in tasks}}
    check_takes(maker, given, protocol.frames, protocol.size, protocol.camera)


def take_name(task: Task, seed: int) -> str:
    return f"seed{seed}/{task.name}"


def jobs_of(
    makers: list[Maker],
    results: dict[str, Results],
    tasks: list[Task],
    seeds: list[int],
    protocol: Protocol,
) -> list[Job]:
    """Video by video, so that each is encoded once for all policies and seeds."""
    contexts = Contexts()
    return [
        Job(
            results=results[maker.row.name],
            name=take_name(task, seed),
            # As many as the model works on, but for the filling of the last chunk.
            frames=given_frames(probe(task.video), 1) + protocol.frames,
            make=partial(take_of, maker, task, seed, protocol, contexts),
        )
        for task in by_video(tasks)
        for maker in makers
        for seed in seeds
    ]


def own_profile(checkpoint: str, usual: str) -> str:
    """CMBench runs LingBot-World v2 by another schedule than its authors' command does."""
    named = rows_named(checkpoint)
    is_lingbot = bool(named) and named[0].profile.name == AS_RELEASED
    return AS_CMBENCH if is_lingbot and AS_CMBENCH in PROFILES else usual


def read_seeds(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ValueError(f"--seeds is '{text}'. Give different numbers from 0 on, such as 2,3,4.")
    return seeds


def read_protocol(args) -> Protocol:
    size = read_size(args)
    if args.frames < 1:
        raise ValueError(f"--frames is {args.frames}. Use at least 1 new latent frame.")
    camera = args.camera or STILL
    camera_words(camera, 1, args.frames)
    return Protocol(args.frames, size, camera)
