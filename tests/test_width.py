"""The width of lines in files that ruff does not look at."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COLUMNS = {
    "README.md": 120,
    "CHANGELOG.md": 120,
    "dev/FIGURES.md": 120,
    "dev/ARENAS.md": 120,
    **{str(path.relative_to(ROOT)): 100 for path in sorted((ROOT / "web/js").glob("*.js"))},
}


@pytest.mark.parametrize("file", COLUMNS)
def test_lines_are_no_wider_than_a_reader_wants_them(file):
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    assert not [n for n, line in enumerate(lines, 1) if len(line) > COLUMNS[file]]
