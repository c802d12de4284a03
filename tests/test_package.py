"""What the registry's package holds: .comfyignore leaves out what a user has no use for, and
nothing that the rest needs.
"""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HELD = [
    "__init__.py",
    "LICENSE",
    "README.md",
    "pyproject.toml",
    "requirements.txt",
    "host",
    "kv_policies",
    "locales",
    "nodes",
    "rollout",
    "subgraphs",
    "web",
    "workflows",
    "demo/drawing.py",
    "demo/heads",
    "demo/landmarks.py",
    "demo/load.py",
    "demo/text.py",
    "demo/weights",
    "demo/world.py",
]


def tracked(*options) -> set[str]:
    try:
        run = subprocess.run(
            ["git", "-C", ROOT, "ls-files", "--cached", *options],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return set(run.stdout.splitlines())


@pytest.fixture(scope="module")
def package():
    """.comfyignore has .gitignore's syntax, so git reads it."""
    return tracked() - tracked("--ignored", f"--exclude-from={ROOT / '.comfyignore'}")


def test_it_holds_what_the_host_reads_and_no_tests_or_commands(package):
    assert {path for path in tracked() if path.startswith(tuple(HELD))} <= package
    assert not {path for path in package if path.startswith(("tests/", "dev/", ".ci/"))}


def test_its_modules_import_nothing_that_it_leaves_out(package):
    left_out = tracked() - package
    for path in sorted(path for path in package if path.endswith(".py")):
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                place = Path(path).parents[node.level - 1]
                names = (
                    [node.module.replace(".", "/")]
                    if node.module
                    else [name.name for name in node.names]
                )
                files = {
                    str(place / file)
                    for name in names
                    for file in (f"{name}.py", f"{name}/__init__.py")
                }
                assert not files & left_out, f"{path}, line {node.lineno}"


def test_pyproject_asks_for_the_packages_of_requirements_txt():
    """The registry reads the one, ComfyUI-Manager installs the other."""
    wanted = [
        line
        for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    ]
    dependencies = re.search(
        r"^dependencies = \[(.*)\]",
        (ROOT / "pyproject.toml").read_text(encoding="utf-8"),
        re.MULTILINE,
    )[1]
    assert re.findall(r'"(.*?)"', dependencies) == wanted
