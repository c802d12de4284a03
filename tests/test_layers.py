"""Who may import whom. Arrows only point to rooms lower in this list."""

import ast
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
    "functools",
    "itertools",
    "json",
    "math",
    "pathlib",
    "re",
    "threading",
    "time",
    "typing",
    "weakref",
}
MAY_IMPORT = {  # room: (other rooms, packages)
    "kv_policies": (set(), {"torch", "flash_attn"}),  # flash_attn: when it is there
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
            "logging",
            "node_helpers",
            "os",
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


def imports(path: Path):
    """(room or package, is a room) of every import in a file, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((name.name.split(".")[0], False) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.split(".")[0], False
        elif isinstance(node, ast.ImportFrom) and node.level == 2:
            yield node.module.split(".")[0], True


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_lies_below_it(room):
    rooms, packages = MAY_IMPORT[room]
    files = list((ROOT / room).rglob("*.py"))
    assert files
    for path in files:
        for name, is_room in imports(path):
            assert name in (rooms if is_room else packages | PLAIN), (
                f"{path.relative_to(ROOT)} imports {name}"
            )


def test_the_pack_itself_imports_nothing():
    """The host loads it by path, tests load it without a host: both need an `__init__` that does
    not import at module level.
    """
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    assert not [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
