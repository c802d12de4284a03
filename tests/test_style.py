"""`ruff format` and `ruff check` have nothing to say, in the version that dev/setup.py pins."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def pinned() -> str:
    spec = importlib.util.spec_from_file_location("keepsake_dev_setup", ROOT / "dev/setup.py")
    setup = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(setup)
    return next(tool for tool in setup.TOOLS if tool.startswith("ruff==")).removeprefix("ruff==")


@pytest.fixture(scope="module")
def ruff():
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    program = shutil.which("ruff", path=places)
    version = program and subprocess.run([program, "--version"], capture_output=True, text=True)
    if not program or version.stdout.split() != ["ruff", pinned()]:
        pytest.skip(f"no ruff {pinned()} here")
    return program


@pytest.mark.parametrize("command", [["format", "--check"], ["check"]], ids=" ".join)
def test_ruff_has_nothing_to_say(ruff, command):
    done = subprocess.run(
        [ruff, *command, "--no-cache", "--output-format=concise", "."],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
