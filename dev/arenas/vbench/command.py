"""`dev/bench vbench` from its flags to its table."""

import shlex
from collections.abc import Callable
from pathlib import Path

from ..camera import STILL
from ..checks import check_takes
from ..flags import read_size
from ..graphs import rows_of, use_model_folders
from ..maker import Maker
from ..node_run import NodeRun
from ..records import measured_hours
from ..results import Job, work_through
from ..sizes import hours_assume
from .calls import calls, is_long
from .dry import dry_row
from .suite import Suite, read_suite
from .table import NO_TAKES, folders_in, table
from .takes import Protocol, VideoFolder, folder_of, jobs_of, videos_of

Say = Callable[[str], None]


def run(args, say: Say = print) -> tuple[list[dict], list[str]]:
    """The table's rows, and the names of takes that failed. ValueError, in a sentence, for what is
    wrong with flags, list or graph, before any work.
    """
    out = Path(args.out)
    if args.table:
        rows = table(folders_in(out))
        if not rows:
            raise ValueError(NO_TAKES.format(out))
        return rows, []

    # 1. What is asked for.
    use_model_folders()
    size = read_size(args)
    if args.seed < 0:
        raise ValueError(f"--seed is {args.seed}. Use a number from 0 on.")
    protocols = {frames: Protocol(frames, size, args.seed) for frames in read_lengths(args.frames)}
    suites = {frames: suite_of(args, is_long(frames)) for frames in protocols}
    nodes = NodeRun()
    makers = [Maker(row, nodes) for row in rows_of(args)]
    # 2. Without weights: what it will come to.
    if args.dry_run:
        say(hours_assume(args.tflops))
        return dry_rows(makers, suites, protocols, out, args.tflops), []
    # 3. The videos, once it is known that they can be made.
    for maker in makers:
        check(maker, protocols)
    folders = {
        (frames, maker.row.name): VideoFolder(
            folder_of(out, maker.row.name, frames),
            maker.row.settings(protocol) | {"prompts": suites[frames].mark},
        )
        for frames, protocol in protocols.items()
        for maker in makers
    }
    jobs: list[Job] = []
    for frames, protocol in protocols.items():
        of_rows = {maker.row.name: folders[frames, maker.row.name] for maker in makers}
        jobs += jobs_of(makers, of_rows, suites[frames], protocol, say)
    failed = work_through(jobs, say)
    # 4. What VBench has to do with them, and what it has said.
    say("In a clone of VBench, in its own environment:")
    for (frames, _), folder in folders.items():
        for line in calls(folder, suites[frames], frames):
            say(line)
    say(f"Then: dev/bench vbench --table --out {shlex.quote(args.out)}")
    places = [(name, frames, folder) for (frames, name), folder in folders.items()]
    return table(places), [job.label for job in failed]


def dry_rows(
    makers: list[Maker],
    suites: dict[int, Suite],
    protocols: dict[int, Protocol],
    out: Path,
    tflops: float,
) -> list[dict]:
    rows = []
    for frames, protocol in protocols.items():
        names = [name for name, *_ in videos_of(suites[frames].prompts)]
        for maker in makers:
            folder = folder_of(out, maker.row.name, frames)
            row = dry_row(maker, len(names), protocol, tflops)
            rows.append(row | {"hours_as_measured": measured_hours(folder, names)})
    return rows


def check(maker: Maker, protocols: dict[int, Protocol]):
    """Load what makes a row's takes. ValueError, in a sentence, where it can make none of them."""
    maker.load()
    if maker.takes_start_image:
        raise ValueError(
            f"{maker.profile.name or 'The model'} begins with an image, and VBench's prompts have "
            "none. Use a model of text to video."
        )
    for frames, protocol in protocols.items():
        check_takes(maker, [0], frames, protocol.size, STILL)


def suite_of(args, long: bool) -> Suite:
    if not args.prompts:
        raise ValueError(
            "--prompts is not given. Name VBench_full_info.json of VBench's repository, or a text "
            "file with a prompt on each line."
        )
    first, samples = (2, 1) if args.quick else (args.first, args.samples)
    told = Path(args.told) if args.told else None
    return read_suite(Path(args.prompts), told, args.dimension, first, samples, long)


def read_lengths(text: str) -> list[int]:
    try:
        lengths = [int(part) for part in text.split(",")]
    except ValueError:
        lengths = []
    if not lengths or min(lengths) < 1 or len(set(lengths)) < len(lengths):
        raise ValueError(
            f"--frames is '{text}'. Give different numbers of latent frames, such as 21,120."
        )
    return lengths
