"""What the host waits for when it starts: the pack brings nothing in that the host has not, says nothing, and changes nothing."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

if not os.environ.get("COMFYUI_PATH"):
    pytest.skip("no ComfyUI to test in", allow_module_level=True)


def test_the_import_is_light_and_silent_and_changes_nothing():
    """Matplotlib alone would take a second."""
    program, dev = Path(__file__).with_name("loading.py"), Path(__file__).parents[2] / "dev"
    run = subprocess.run([sys.executable, program], env=os.environ | {"PYTHONPATH": str(dev)}, capture_output=True, text=True, check=True)
    assert "SAID" not in run.stdout and run.stdout.splitlines()[-2:] == ["NEW keepsake", "CHANGED "]
