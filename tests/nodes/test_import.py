"""What the host waits for when it starts: the pack brings nothing in that the host has not, says
nothing, and changes nothing.
"""

import os
import subprocess
import sys
from pathlib import Path

OTHER_HOST = """
import asyncio, sys
from support import pack
pack.use_host("--cpu")
sys.modules["comfy.ldm.wan.ar_model"] = None
asyncio.run(pack.load_pack().comfy_entrypoint())
"""


def run(*arguments):
    path = [str(Path(__file__).parents[2] / "dev"), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))},
        capture_output=True,
        text=True,
    )


def test_the_import_is_light_and_silent_and_changes_nothing():
    """Matplotlib alone would take a second."""
    printed = run(Path(__file__).with_name("loading.py")).stdout
    assert "SAID" not in printed and printed.splitlines()[-2:] == ["NEW keepsake", "CHANGED "]


def test_a_host_that_lacks_something_is_told_what_and_which_hosts_have_it():
    last = run("-c", OTHER_HOST).stderr.splitlines()[-1]
    assert (
        "needs comfy.ldm.wan.ar_model (import of comfy.ldm.wan.ar_model halted" in last
        and "does not have. It is tested with ComfyUI 0.24, 0.27, 0.30 and 0.33" in last
    )
