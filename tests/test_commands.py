"""What a newcomer tries first: the help of the commands, before anything is fetched or built."""

import os
import re
import subprocess
from pathlib import Path

import pytest

DEV = Path(__file__).parents[1] / "dev"


def help_of(*command, state: Path) -> str:
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("COMFYUI_PATH", "KEEPSAKE_VENV")
    }
    done = subprocess.run(
        [DEV / command[0], *command[1:], "--help"],
        env=environment | {"KEEPSAKE_DEV_DIR": str(state)},
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "command, says",
    [
        (["serve"], "--port"),
        (["demo"], "--frames"),
        (["pictures"], "web/docs"),
        (["test"], "--all-hosts"),
        (["bench", "parity"], "--quick"),
    ],
)
def test_help_needs_no_environment(command, says, tmp_path):
    assert says in help_of(*command, state=tmp_path / "state") and not (tmp_path / "state").exists()


def test_every_bench_is_listed_in_whole_sentences(tmp_path):
    listed = re.split(r"\n  (?! )", help_of("bench", state=tmp_path))[1:]
    says = {name: " ".join(words) for name, *words in map(str.split, listed)}
    assert says.keys() >= {"recall", "speed", "drift", "endless"}
    assert not {name: words for name, words in says.items() if not re.search(r"[.?]$", words)}
