"""The example in CONTRIBUTING.md is real: it applies to this checkout, and the policy that it adds
passes its tests.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NEEDED = (
    "kv_policies",
    "rollout",
    "nodes",
    "dev",
    "tests",
    "__init__.py",
    "pyproject.toml",
    "requirements.txt",
)


@pytest.mark.skipif(not shutil.which("git"), reason="git applies the diff, and there is none")
def test_the_example_policy_works(tmp_path):
    for name in NEEDED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    (diff,) = re.findall(
        r"```diff\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL
    )
    subprocess.run(["git", "apply", "--recount"], input=diff, text=True, cwd=tmp_path, check=True)
    compile((tmp_path / "nodes/policies.py").read_text(encoding="utf-8"), "policies.py", "exec")
    environment = {name: value for name, value in os.environ.items() if name != "COMFYUI_PATH"}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "tests/kv_policies/retention/test_every_nth.py",
            "tests/kv_policies/retention/test_invariants.py",
            "-k",
            "every or EveryNth",
        ],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout, done.stdout  # its own, three chunk sizes, two streams
