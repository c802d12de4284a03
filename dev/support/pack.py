"""Loading the pack outside a running ComfyUI, for tests, benches and training: the host on
`sys.path`, the pack by file path.

The checkout must not be on `sys.path`: its `nodes/` would shadow the host's `nodes` module.
"""

import asyncio
import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def use_host(*host_arguments: str) -> str | None:
    """Make the ComfyUI that COMFYUI_PATH names importable, with its own command-line arguments;
    None without one.
    """
    path = os.environ.get("COMFYUI_PATH")
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
    if path:
        sys.path.insert(0, path)
        arguments, sys.argv = sys.argv, ["main.py", *host_arguments]
        import comfy.options

        comfy.options.enable_args_parsing()
        import comfy.cli_args

        sys.argv = arguments
    return path


def load_pack():
    """The checkout as the package `keepsake`, imported once: a second one would not know the rooms
    that the first has.
    """
    return sys.modules.get("keepsake") or load_file(
        "keepsake", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
    )


def nodes() -> list[type]:
    """The pack's node classes, as the host asks for them."""
    return asyncio.run(asyncio.run(load_pack().comfy_entrypoint()).get_node_list())


def load_server():
    """Import dev/server.py under a name that does not hide the host's `server` module."""
    return load_file("keepsake_dev_server", ROOT / "dev/server.py")


def load_file(name, file, **where):
    """Import a file under a name of its own."""
    spec = importlib.util.spec_from_file_location(name, file, **where)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
