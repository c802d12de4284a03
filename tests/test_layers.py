"""Who may import whom: between rooms, between the rooms inside a room, and no circle of files."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLAIN = {
    "__future__",
    "abc",
    "collections",
    "contextlib",
    "copy",
    "dataclasses",
    "errno",
    "functools",
    "importlib",
    "inspect",
    "itertools",
    "json",
    "math",
    "pathlib",
    "pkgutil",
    "re",
    "threading",
    "time",
    "typing",
    "uuid",
    "weakref",
}
MAY_IMPORT = {  # room: (the other rooms it may import, packages)
    "kv_policies": (set(), {"torch", "flash_attn", "wan"}),  # the last two: when they are there
    "rollout": ({"kv_policies"}, {"torch", "safetensors", "os", "shutil", "zlib"}),
    "host": (
        {"rollout", "kv_policies"},
        {
            "torch",
            "numpy",
            "av",
            "fractions",
            "io",
            "struct",
            "matplotlib",
            "comfy",
            "comfy_api",
            "comfy_execution",
            "comfy_extras",
            "server",
            "latent_preview",
            "folder_paths",
            "psutil",
            "hashlib",
            "importlib",
            "logging",
            "node_helpers",
            "operator",
            "os",
            "safetensors",
            "sys",
        },
    ),
    "demo": (
        {"host"},
        {"torch", "numpy", "comfy", "argparse", "os", "sys", "safetensors", "support", "keepsake"},
    ),  # train.py is a command
    "nodes": (
        {"host", "demo", "kv_policies"},
        {"comfy_api", "comfy_execution", "folder_paths", "torch"},
    ),
}

INSIDE = {  # room: {its folder, or file at its top: the others there that it may import}
    "kv_policies": {
        "take": "",
        "state": "",
        "words": "",
        "cache": "take state",
        "storage": "take state cache",
        "retention": "take state words cache",
        "selection": "take state cache retention",
        "schedule": "take state cache retention",
        "slot_rules": "take words storage retention selection schedule",
        "policy": "take state cache storage retention selection schedule slot_rules",
        "smaller": "policy storage retention selection schedule",
    },
    "host": {
        "keys": "",
        "needs": "",
        "model": "keys",
        "files": "keys",
        "forward": "keys model files",
        "budget": "keys model files forward",
        "show": "keys model files forward budget",
        "take": "keys model files forward budget show",
        "heads": "keys model files forward budget show take",
    },
}


def packages(path: Path) -> Iterator[str]:
    """The packages outside the pack that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.split(".")[0]


@functools.cache
def files_imported(path: Path) -> set[Path]:
    """The files of the pack that a file imports, also inside functions and under TYPE_CHECKING."""
    files = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            module = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for name in node.names:
                found = [module / f"{name.name}.py", module / name.name / "__init__.py"]
                found += [module.with_suffix(".py"), module / "__init__.py"]
                files.add(next(file for file in found if file.exists()))
    return files


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_lies_below_it(room):
    rooms, allowed = MAY_IMPORT[room]
    files = list((ROOT / room).rglob("*.py"))
    assert files
    for path in files:
        used = set(packages(path))
        assert used <= allowed | PLAIN, f"{path.relative_to(ROOT)} imports {used - allowed - PLAIN}"
        used = {file.relative_to(ROOT).parts[0] for file in files_imported(path)}
        assert used <= rooms | {room}, f"{path.relative_to(ROOT)} imports {used - rooms - {room}}"


def place(path: Path, room: str) -> str:
    """The folder inside the room, or the file at its top, that a file belongs to."""
    return path.relative_to(ROOT / room).with_suffix("").parts[0]


@pytest.mark.parametrize("room", INSIDE)
def test_the_rooms_inside_a_room_import_only_what_their_line_says(room):
    table = INSIDE[room]
    places = {place(path, room) for path in (ROOT / room).rglob("*.py")} - {"__init__"}
    assert places == set(table)
    for path in (ROOT / room).rglob("*.py"):
        for imported in files_imported(path):
            if not imported.is_relative_to(ROOT / room):
                continue
            here, there = place(path, room), place(imported, room)
            if "__init__" in (here, there) or here == there:
                continue
            assert there in table[here].split(), (
                f"{path.relative_to(ROOT)} imports {imported.relative_to(ROOT)}; INSIDE in this "
                f"file allows {here} to import: {table[here] or 'nothing'}"
            )


def circles(files: list[Path]) -> list[list[Path]]:
    """Groups of files each of which imports all others of its group, directly or through others."""
    reached = {}
    for file in files:
        reached[file], to_do = set(), [file]
        while to_do:
            new = files_imported(to_do.pop()) - reached[file]
            reached[file] |= new
            to_do += new
    groups = {
        frozenset(other for other in reached[file] if file in reached[other])
        for file in files
        if file in reached[file]
    }
    return [sorted(group) for group in groups]


def test_no_files_import_each_other_in_a_circle():
    files = [path for room in MAY_IMPORT for path in (ROOT / room).rglob("*.py")]
    assert not [[str(path.relative_to(ROOT)) for path in circle] for circle in circles(files)]


def test_a_circle_is_found_wherever_the_import_stands(tmp_path):
    """a imports b at its top, b imports c in a function, c imports a for type checkers only."""
    code = {
        "__init__": "",
        "a": "from .b import x",
        "b": "def f():\n    from . import c",
        "c": "if TYPE_CHECKING:\n    from .a import A",
        "d": "from .a import A",
    }
    for name, text in code.items():
        (tmp_path / f"{name}.py").write_text(text)
    files = sorted(tmp_path.glob("*.py"))
    assert circles(files) == [[tmp_path / f"{name}.py" for name in "abc"]]


def test_the_pack_itself_imports_nothing():
    """The host loads it by path, tests load it without a host: both need an `__init__` that does
    not import at module level.
    """
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    assert not [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
