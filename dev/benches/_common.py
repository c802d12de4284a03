"""What all benches share: the host and the pack, a table, and one JSON line last."""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.pack import load_pack, use_host

SDPA = "--use-pytorch-cross-attention"  # on a CPU twice as fast as the host's default


def start(
    description: str,
    host_flags: Callable[[argparse.Namespace], list[str]] = lambda args: [],
    quick: str = "a first look in under a minute",
    cpu: bool = True,
    **flags,
) -> argparse.Namespace:
    """Parse the bench's arguments, with `--quick` (`quick` is its help), and make host and pack
    importable; `host_flags` answers for the host's own. Without `cpu`, on a machine with a device
    for it, the host runs there.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=quick)
    for name, options in flags.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **options)
    args = parser.parse_args()
    host = os.environ.get("COMFYUI_PATH", "")
    if not (Path(host) / "comfy").is_dir():
        raise SystemExit(
            f"A bench needs a ComfyUI, and COMFYUI_PATH is '{host}'. Run it as `dev/bench NAME`, "
            "or set COMFYUI_PATH to the folder that has main.py and comfy/."
        )
    place = ["--cpu"] if cpu or not has_device() else []
    use_host(*place, *host_flags(args))
    load_pack()
    import logging

    import torch

    torch.set_grad_enabled(False)  # as ComfyUI runs its nodes
    logging.getLogger().setLevel(logging.ERROR)
    return args


def make_takes(bench: str, run: Callable, args: argparse.Namespace):
    """An arena's `run`: its table, and sentences for what cannot be or went wrong."""
    try:
        rows, failed = run(args)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        raise SystemExit(
            "Stopped. The takes that are there stay; the same command goes on."
        ) from None
    if rows:
        report(bench, rows, failed=failed)
    if failed:
        raise SystemExit(
            f"{len(failed)} takes failed, see their .error.txt: {', '.join(failed[:5])}. The same "
            "command tries them again."
        )


def has_device() -> bool:
    """Whether torch sees one that ComfyUI would choose by itself."""
    import torch

    return any(backend.is_available() for backend in (torch.cuda, torch.xpu, torch.backends.mps))


def report(bench: str, rows: list[dict], **more):
    """Print the rows as a table, then everything as one JSON object on the last line."""
    import comfyui_version

    columns = [key for key in rows[0] if not isinstance(rows[0][key], list)]
    cells = [columns] + [
        [f"{row[key]:.4g}" if isinstance(row[key], float) else str(row[key]) for key in columns]
        for row in rows
    ]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
    print(json.dumps({"bench": bench, "host": comfyui_version.__version__, "rows": rows, **more}))
