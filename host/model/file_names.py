"""What a checkpoint file is, by its name: rows of the table, or what cannot be rolled out."""

import re
from collections.abc import Iterator

from .published import CHECKPOINTS, Checkpoint

# Stages of training that the authors publish as well; none is made for a few steps.
UNFINISHED = r"\b(ode-init|ode|cd|init|ar-diffusion|causal-pretrain)\b"
# Names of files that cannot be rolled out at all, and what they are.
NO_AR_MODEL = {
    r"(?<!sf)wan-?2-?[12]-(t2v|i2v|ti2v|flf2v)": "Wan's own bidirectional model, which was never "
    "trained to be rolled out and gives a broken "
    "video in chunks. Load a checkpoint that was made for it (Self-Forcing, Causal-Forcing, "
    "LongLive "
    "...), or choose a profile if this is one",
    r"lingbot-?world.*base": "LingBot-World's bidirectional model, from which the fast ones were "
    "made and which gives a broken video in chunks. Load lingbot-world-fast or "
    "lingbot-world-v2-14b-causal-fast, or choose a profile if this is one",
    r"matrix-?game.*(foundation|base-model)": "Matrix-Game 2's foundation model, from which the "
    "distilled ones were made and which gives a broken video in a few steps. Load base_distill, "
    "gta_keyboard2dim or templerun_7dim_onlykey, or choose a profile if this is one",
    r"\bsfwan2-2\b": "one of the two experts of FastVideo's SFWan2.2, which take turns in every "
    "chunk; Keepsake runs one model. "
    "Load a checkpoint of one model, or choose a profile to use this expert alone",
}


def rows_named(name: str) -> list[Checkpoint]:
    """Rows that a file's name matches; where none does, that its folder and name match together,
    and so on upwards.
    """
    for path in _nearest_first(name):
        rows = [
            row for row in CHECKPOINTS if all(re.search(pattern, path) for pattern in row.name_has)
        ]
        if re.search(UNFINISHED, path) or not rows and why_no_ar_model(path):
            return []
        if rows:
            return rows
    return []


def why_no_ar_model(name: str) -> str | None:
    """What a file is by its name, where that cannot be rolled out; else None."""
    for path in _nearest_first(name):
        if stage := re.search(UNFINISHED, path):
            return (
                f"an unfinished stage of training ('{stage[0]}'), from which the model of a few "
                "steps is trained and which itself gives a broken video. Load the finished "
                "checkpoint, or choose a profile if this is one"
            )
        for pattern, why in NO_AR_MODEL.items():
            if re.search(pattern, path):
                return why
    return None


def _nearest_first(name: str) -> Iterator[str]:
    """The file's name, then with one folder more each time; in lower case, with "-" for everything
    that is no letter, digit or "+".
    """
    parts = re.split(r"[\\/]", name.lower())
    for count in range(1, len(parts) + 1):
        yield re.sub(r"[^a-z0-9+]+", "-", "/".join(parts[-count:]))
