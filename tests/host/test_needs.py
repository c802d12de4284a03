"""The names of ComfyUI that the pack uses: all are in the table, and a host that lacks one is
refused by name.
"""

import ast
import re
from collections import defaultdict
from pathlib import Path

import comfy.conds
import comfy.model_patcher
import pytest
from keepsake.host import TESTED_HOSTS
from keepsake.host.needs import METHODS, NAMES, missing_names, require_names

ROOT = Path(__file__).parents[2]
HOST = {
    "comfy",
    "comfy_api",
    "comfy_execution",
    "comfy_extras",
    "folder_paths",
    "latent_preview",
    "node_helpers",
    "server",
}


def imports(tree: ast.Module) -> dict[str, str]:
    """What each imported name of the host stands for: `module:` or `module:name`."""
    meaning = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] in HOST:
                    meaning[name.asname or name.name] = f"{name.name}:"
        elif isinstance(node, ast.ImportFrom) and not node.level:
            if node.module.split(".")[0] in HOST:
                for name in node.names:
                    meaning[name.asname or name.name] = f"{node.module}:{name.name}"
    # Another name for a module: `management = comfy.model_management`.
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.value) in meaning:
            meaning[ast.unparse(node.targets[0])] = meaning[ast.unparse(node.value)]
    return meaning


def used_names(source: str) -> set[str]:
    """`module:name` for each name of the host that a file uses, `module:Class.attribute` for what
    it reads of one.
    """
    tree = ast.parse(source)
    meaning, used = imports(tree), set()
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    inner = {node.value for node in attributes}  # the longest chain of attributes counts
    for node in attributes:
        chain = ast.unparse(node)
        begins = [name for name in meaning if chain.startswith(f"{name}.")]
        if node not in inner and begins and "(" not in chain:
            start = max(begins, key=len)
            used.add(f"{meaning[start]}.{chain[len(start) + 1 :]}".replace(":.", ":"))
    # A name that is imported, and of which nothing is read.
    for name in meaning.values():
        if not any(other.startswith((f"{name}.", f"{name}:")) for other in used):
            used.add(name)
    return {name for name in used if not name.endswith(":")}


def sources() -> list[str]:
    return [
        path.read_text(encoding="utf-8")
        for room in ("host", "demo", "nodes")
        for path in (ROOT / room).rglob("*.py")
    ]


def test_the_names_of_a_file_are_found():
    source = """
import comfy.samplers
import comfy.utils as u
import folder_paths
from comfy.ldm.wan.model import WanModel, WanSelfAttention
from comfy_api.latest import io, ui

def f():
    from server import PromptServer
    management = comfy.samplers
    management.calculate_sigmas(u.PROGRESS_BAR_ENABLED, WanSelfAttention.forward)
    other.folder_paths.nothing
    return ui.PreviewImage(io.Int.Input()).as_dict()
"""
    assert used_names(source) == {
        "comfy.samplers:calculate_sigmas",
        "comfy.utils:PROGRESS_BAR_ENABLED",
        "comfy.ldm.wan.model:WanModel",
        "comfy.ldm.wan.model:WanSelfAttention.forward",
        "comfy_api.latest:io.Int.Input",
        "comfy_api.latest:ui.PreviewImage",
        "server:PromptServer",
    }


def test_every_name_that_is_used_is_in_the_table_and_no_other():
    used = defaultdict(set)
    for source in sources():
        for name in used_names(source):
            module, _, inside = name.partition(":")
            used[module].add(inside)
    # Of `A` and `A.b`, the second says both.
    table = {
        module: " ".join(
            sorted(
                name for name in names if not any(other.startswith(f"{name}.") for other in names)
            )
        )
        for module, names in sorted(used.items())
    }
    assert table == NAMES


def test_every_method_in_the_table_is_called_somewhere():
    text = "\n".join(sources())
    for names in METHODS.values():
        for name in names.split():
            assert re.search(rf"\.{name.rpartition('.')[2]}\(", text), name


def test_this_host_has_them_all():
    assert missing_names() == []


def test_a_host_that_lacks_names_is_refused_by_them(monkeypatch):
    monkeypatch.delattr(comfy.conds, "is_equal")
    monkeypatch.delattr(comfy.model_patcher.ModelPatcher, "get_callbacks")
    missing = "comfy.conds.is_equal, comfy.model_patcher.ModelPatcher.get_callbacks"
    with pytest.raises(ImportError, match=f"needs {re.escape(missing)}, which this ComfyUI does"):
        require_names()
    with pytest.raises(ImportError, match=f"tested with ComfyUI {re.escape(TESTED_HOSTS)}; use"):
        require_names()
