"""The pictures of the help pages: each page has one, none is left over, all are small."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "web/docs"
SHOWN = {
    page.name: re.findall(r"^!\[(.*)\]\((.*)\)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    for page in DOCS.glob("*.md")
}
PICTURES = sorted(path for path in DOCS.iterdir() if path.suffix != ".md")


@pytest.mark.parametrize("page", SHOWN)
def test_a_page_has_a_picture_and_says_what_it_shows(page):
    name = page.removesuffix(".md")
    assert SHOWN[page], (
        f"web/docs/{page} has no picture: run dev/pictures {name} and add ![what it shows]"
        f"({name}.webp)"
    )
    assert all(len(words) > 20 for words, _ in SHOWN[page])


def test_every_picture_is_there_and_used_once():
    assert sorted(file for pictures in SHOWN.values() for _, file in pictures) == [
        path.name for path in PICTURES
    ]


def test_every_picture_can_be_made_anew():
    """dev/pictures.py names each, but for the policies, which it makes with their defaults."""
    script = (ROOT / "dev/pictures.py").read_text(encoding="utf-8")
    names = {path.stem for path in PICTURES if not path.stem.startswith("KeepsakePolicy")}
    assert not {name for name in names if f'"{name}"' not in script}


def test_pictures_are_small():
    sizes = {path.name: path.stat().st_size for path in PICTURES}
    assert max(sizes.values()) <= 60_000 and sum(sizes.values()) <= 1_200_000, sizes
