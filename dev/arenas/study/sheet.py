"""The sheet of a study: a folder to hand out, and a key to keep."""

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path

from .side_by_side import join

PAGE = Path(__file__).with_name("page.html")
PLACE = "STUDY_DATA"  # in the page
QUESTION = "Which of the two videos is better?"


def make(
    first: Path,
    second: Path,
    out: Path,
    seed: int = 0,
    question: str = QUESTION,
    say: Callable[[str], None] = print,
) -> dict:
    """Write `out/sheet` (the page and its videos) and `out/key.json`; the key.

    Each video of `first` is paired with the one of the same name in `second`. `seed` draws the
    order of the pairs and each pair's sides, half of them each way. ValueError, in a sentence,
    where nothing can be paired or `out` has a sheet already.
    """
    # 1. what is paired
    first, second, out = Path(first), Path(second), Path(out)
    names = paired(first, second, say)
    if (out / "key.json").exists():
        raise ValueError(
            f"{out} has a sheet already, and choices made on it would no longer count. Name "
            "another folder."
        )
    videos = out / "sheet/videos"
    videos.mkdir(parents=True, exist_ok=True)

    # 2. which order, which sides
    draw = random.Random(seed)
    draw.shuffle(names)
    lefts = [("first", "second")[number % 2] for number in range(len(names))]
    draw.shuffle(lefts)
    key = {"first": str(first), "second": str(second), "seed": seed, "question": question}
    key["pairs"] = {
        f"{number:03}": {"name": name, "left": left}
        for number, (name, left) in enumerate(zip(names, lefts), 1)
    }
    key["study"] = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:8]

    # 3. the videos, the page, the key; the key last, for it says that all is there
    for number, pair in key["pairs"].items():
        sides = (first, second) if pair["left"] == "first" else (second, first)
        left_over = join(*(side / pair["name"] for side in sides), videos / f"{number}.mp4")
        more = f"; the longer one's last {left_over} pictures are left out" if left_over else ""
        say(f"{number} of {len(names)}: {pair['name']}{more}")
    shown = {"study": key["study"], "question": question, "pairs": list(key["pairs"])}
    text = PAGE.read_text(encoding="utf-8")
    page = text.replace(PLACE, json.dumps(shown).replace("<", "\\u003c"))
    (out / "sheet/index.html").write_text(page, encoding="utf-8")
    (out / "key.json").write_text(json.dumps(key, indent=1) + "\n", encoding="utf-8")
    return key


def paired(first: Path, second: Path, say: Callable[[str], None]) -> list[str]:
    """The videos, by relative path, that lie in both folders, in order."""
    names = []
    for folder in (first, second):
        if not folder.is_dir():
            raise ValueError(f"{folder} is no folder. Name the folders of two rows' takes.")
        found = {path.relative_to(folder).as_posix() for path in folder.rglob("*.mp4")}
        names.append(found)
    both = names[0] & names[1]
    if not both:
        raise ValueError(
            f"{first} ({len(names[0])} videos) and {second} ({len(names[1])}) have none of the "
            "same name. A pair is one task and seed under two policies, with the same name in both."
        )
    if alone := len(names[0] ^ names[1]):
        say(f"{alone} videos lie in one of the folders only, and are left out.")
    return sorted(both)
