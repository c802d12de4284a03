"""The page's words: English as the schemas have them, and no other language that lacks one."""

import re
from pathlib import Path

import pytest

from locales import LOCALES, flat, load, node_defs

from .test_schema import nodes

LANGUAGES = sorted(folder.name for folder in LOCALES.iterdir())
SCRIPTS = Path(__file__).parents[2] / "web/js"


def test_english_is_what_the_schemas_say():
    assert load("en", "nodeDefs.json") == node_defs(nodes()), "run: dev/python dev/locales.py"


@pytest.mark.parametrize("file", ["main.json", "nodeDefs.json"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_language_lacks_no_text(language, file):
    assert flat(load(language, file)).keys() == flat(load("en", file)).keys(), (
        "dev/python dev/locales.py lists what is missing"
    )
    assert all(flat(load(language, file)).values())


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_can_show_every_text(language):
    """In the page's message format `{`, `}`, `@` and `|` are no letters, and `$` begins a link."""
    for key, text in flat(load(language, "nodeDefs.json")).items():
        assert not re.search(r"[{}@|$]", text), key


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_message_keeps_its_numbers(language):
    english, other = flat(load("en", "main.json")), flat(load(language, "main.json"))
    assert {key: sorted(re.findall(r"{\w+}", text)) for key, text in english.items()} == {
        key: sorted(re.findall(r"{\w+}", text)) for key, text in other.items()
    }


def test_every_message_of_our_scripts_is_there():
    used = set(
        re.findall(
            r'say\("(\w+)"',
            "".join(path.read_text(encoding="utf-8") for path in SCRIPTS.glob("*.js")),
        )
    )
    assert used and used <= set(load("en", "main.json")["keepsake"])
