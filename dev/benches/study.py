"""A user study: two policies' takes side by side on a page to hand out, and the choices counted.

    dev/bench study --first takes/full --second takes/decoprune --out study
    dev/bench study --key study/key.json --choices choices_*.json

The first line pairs the videos of the same name (one task and seed under two policies), each pair
in an order drawn by --seed, and writes study/sheet: a page that opens from a file, and its videos.
Hand that folder out, and keep study/key.json, which says which take is where. People save a file;
the second line refuses files that do not belong to the key, and prints how often the second one
was preferred: a choice of no difference counts half for each. Wilson's 95 % interval takes every
choice as a person of its own; the bootstrap over pairs says how much another drawing of takes would
change it, and is the honest one where many people judge few pairs.
"""

import _common as common

args = common.start(
    __doc__,
    quick="no difference here",
    first={"default": "", "help": "folder of one policy's takes"},
    second={"default": "", "help": "folder of the other's"},
    out={"default": "", "help": "folder to write the sheet and its key to"},
    seed={"type": int, "default": 0, "help": "draws the order of pairs and sides"},
    question={"default": "Which of the two videos is better?", "help": "at the top of the page"},
    key={"default": "", "help": "key.json of a sheet, to count choices"},
    choices={"nargs": "+", "default": [], "help": "the files that people sent"},
)
import json
from pathlib import Path

from arenas.study import preference, sheet


def main():
    try:
        if args.choices:
            count()
        else:
            make()
    except ValueError as error:
        raise SystemExit(str(error)) from None


def make():
    missing = [name for name in ("first", "second", "out") if not getattr(args, name)]
    if missing:
        raise ValueError(
            f"--{missing[0]} is not given. A sheet needs --first, --second and --out; to count "
            "choices give --key and --choices."
        )
    key = sheet.make(Path(args.first), Path(args.second), Path(args.out), args.seed, args.question)
    print(
        f"{len(key['pairs'])} pairs. Hand out {args.out}/sheet (people open index.html), and keep "
        f"{args.out}/key.json."
    )


def count():
    key = preference.read_key(Path(args.key))
    found = preference.of(key, [Path(name) for name in args.choices])
    for line in preference.words(found):
        print(line)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
