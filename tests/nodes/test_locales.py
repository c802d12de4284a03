"""The page's words in other languages. A language may lack a node, which the page then shows in the
English of its schema; of a node that it has it lacks no text.
"""

import re
from pathlib import Path

import pytest

from locales import LANGUAGES, LOCALES, flat, load, node_defs

from .test_schema import nodes

SCRIPTS = Path(__file__).parents[2] / "web/js"


LISTS = "dev/python dev/locales.py lists what is missing"


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_language_lacks_no_message(language):
    texts = flat(load(language, "main.json"))
    assert texts.keys() == flat(load("en", "main.json")).keys(), LISTS
    assert all(texts.values())


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_language_lacks_no_text_of_a_node_that_it_has(language):
    texts, english = load(language, "nodeDefs.json"), node_defs(nodes())
    assert texts.keys() <= english.keys(), LISTS
    for node_id, of_node in texts.items():
        assert flat(of_node).keys() == flat(english[node_id]).keys(), LISTS
        assert all(flat(of_node).values())


def test_english_is_in_the_schemas_alone():
    """The page falls back to them (tests/web/test_page.py), and two would drift apart."""
    assert not (LOCALES / "en/nodeDefs.json").exists()


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
