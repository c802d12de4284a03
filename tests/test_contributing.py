"""CONTRIBUTING.md is real: its recipes apply to this checkout and end green, and what it names is
there.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
RECIPES = sorted((ROOT / "dev/recipes").glob("*.diff"))
PLACES = ("kv_policies", "rollout", "host", "demo", "nodes", "web", "dev", "tests", "workflows")
NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "output")
HOST = os.environ.get("COMFYUI_PATH")
needs_git = pytest.mark.skipif(not shutil.which("git"), reason="git applies the diffs")


def run(*command, folder: Path, **options) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def copy(tmp_path):
    """The checkout, without its history and its environment."""
    return shutil.copytree(ROOT, tmp_path / "keepsake", ignore=NOT_COPIED)


def apply(recipe: Path, copy: Path):
    run("git", "apply", "--recount", recipe, folder=copy, env=os.environ | {"GIT_DIR": os.devnull})


def test_every_recipe_is_told_of_and_there():
    assert len(RECIPES) == 5
    assert {f"dev/recipes/{recipe.name}" for recipe in RECIPES} <= set(re.findall(r"`(.+?)`", TEXT))


@needs_git
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_a_recipe_applies_and_is_formatted(recipe, copy):
    apply(recipe, copy)
    if ruff := shutil.which("ruff", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}"):
        files = re.findall(r"^\+\+\+ b/(.*\.py)$", recipe.read_text(encoding="utf-8"), re.MULTILINE)
        run(ruff, "format", "--no-cache", "--check", *files, folder=copy)
        run(ruff, "check", "--no-cache", *files, folder=copy)


@needs_git
def test_the_recipes_end_green(copy):
    """As a contributor would: apply, run the commands, run the tests that CONTRIBUTING.md names, or
    of the large folders those that the recipes can break. The pictures are stand-ins, since
    dev/pictures takes minutes.
    """
    for recipe in RECIPES:
        apply(recipe, copy)
    tests = [
        "tests/test_layers.py",
        "tests/kv_policies/test_slots.py",
        "tests/kv_policies/retention/test_every_nth.py",
        "tests/kv_policies/retention/test_invariants.py",
        "tests/kv_policies/retention/test_short_keys.py",
        "tests/kv_policies/schedule/test_last_step.py",
        "tests/kv_policies/schedule/test_schedules.py",
        "tests/rollout/test_estimate.py",
        "tests/rollout/test_resume_drawn.py",
    ]
    if HOST:
        for page in (copy / "web/docs").glob("*.md"):
            if not (picture := page.with_suffix(".webp")).exists():
                shutil.copy(ROOT / "web/docs/KeepsakeKVStorage.webp", picture)
        run(sys.executable, "dev/schemas.py", folder=copy)
        tests += ["tests/nodes", "tests/host/model/test_profiles.py"]
    # of the other retentions nothing has changed
    chosen = ["-k", "EveryNth or ShortKeys or not (test_invariants or test_estimate)"]
    output = run(sys.executable, "-m", "pytest", "-v", *tests, *chosen, folder=copy)
    names = [
        "test_every_fourth_frame",
        "[EveryNth",
        "[1-EveryNth",
        "[1-ShortKeys",
        "test_the_tokens_with_the_shortest_keys",
        "test_the_estimate_is_what_a_run_measures[KVPolicy(retention=EveryNth",
        "test_the_estimate_is_what_a_run_measures[KVPolicy(retention=ShortKeys",
        "test_two_forwards_a_chunk",
    ]
    if HOST:
        names += ["[PolicyEveryNth]", "[PolicyShortKeys]", "[PolicyLastStep]"]
        names += ["[KVCacheSize]", "[Brook 1.3B]"]
    assert not [name for name in names if name not in output]


def paths_named() -> set[str]:
    """What CONTRIBUTING.md names by its path, but for placeholders."""
    paths = re.findall(r"[\w.]+(?:/[\w.*-]+)+/?(?![\w<])", TEXT)
    return {path for path in paths if path.split("/")[0] in PLACES and "NAME" not in path}


@pytest.mark.parametrize("path", sorted(paths_named()))
def test_what_it_names_is_there(path):
    assert list(ROOT.glob(path.rstrip("/"))), f"CONTRIBUTING.md names {path}"
