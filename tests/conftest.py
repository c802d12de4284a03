"""Loads the pack by file path under the fixed name `keepsake`, beside a ComfyUI when COMFYUI_PATH names one.

The checkout must not be on `sys.path`: its `nodes/` would shadow the host's `nodes` module.
"""
import importlib.util
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOST = os.environ.get("COMFYUI_PATH")

sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
if HOST:
    sys.path.insert(0, HOST)
    arguments, sys.argv = sys.argv, ["main.py", "--cpu"]
    import comfy.options
    comfy.options.enable_args_parsing()
    import comfy.cli_args  # noqa: F401  reads sys.argv once, so that the host's own work runs on the CPU
    sys.argv = arguments


def load_pack():
    spec = importlib.util.spec_from_file_location("keepsake", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
    pack = importlib.util.module_from_spec(spec)
    sys.modules["keepsake"] = pack
    spec.loader.exec_module(pack)


load_pack()


def pytest_collection_modifyitems(items):
    if not HOST:
        for item in items:
            if "tests/host" in item.path.as_posix() or "tests/nodes" in item.path.as_posix():
                item.add_marker(pytest.mark.skip(reason="no ComfyUI: COMFYUI_PATH is not set"))
