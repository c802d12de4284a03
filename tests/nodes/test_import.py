"""What the host waits for when it starts: the pack brings nothing in that the host has not, and says nothing."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

if not os.environ.get("COMFYUI_PATH"):
    pytest.skip("no ComfyUI to test in", allow_module_level=True)

# As in a ComfyUI that has started: its own modules are there before any pack.
START = """
import asyncio, sys
import pack
pack.use_host("--cpu")
import comfy.samplers, comfy.sd, comfy_api.latest, folder_paths, latent_preview, nodes
before, said = set(sys.modules), sys.stdout.write
sys.stdout.write = sys.stderr.write = lambda text: said(f"SAID {text}")
asyncio.run(asyncio.run(pack.load_pack().comfy_entrypoint()).get_node_list())
said("NEW " + " ".join(sorted({name.split(".")[0] for name in set(sys.modules) - before})))
"""


def test_the_import_is_light_and_silent():
    """Matplotlib alone would take a second."""
    dev = Path(__file__).parents[2] / "dev"
    run = subprocess.run([sys.executable, "-c", START], env=os.environ | {"PYTHONPATH": str(dev)}, capture_output=True, text=True, check=True)
    assert "SAID" not in run.stdout and run.stdout.splitlines()[-1] == "NEW keepsake"
