"""dev/bench vbench: lists of prompts, and what the videos of a prompt are called."""

import pytest
from arenas.vbench import suite
from arenas.vbench.names import LONGEST, own_stem, stem


def test_vbenchs_own_prompts_name_their_videos_to_the_letter():
    assert stem("Turtle swimming in ocean.") == "Turtle swimming in ocean."
    with pytest.raises(ValueError, match="No file can be called after 'a/b'"):
        stem("a/b")


@pytest.mark.parametrize(
    "prompt", ["a town: day/night?", "é" * 200, "word " * 100, "w" * 300, "a_b", "???"]
)
def test_any_other_prompt_gets_a_name_that_file_systems_take(tmp_path, prompt):
    name = own_stem(prompt)
    assert len(name.encode()) <= LONGEST and name != own_stem(prompt + "!")
    (tmp_path / f"{name}-0.mp4.part").touch()
    assert not set('<>:"/\\|?*_') & set(name)


def test_a_name_is_the_prompt_where_it_can_be():
    assert own_stem("A town by a lake.") == "A town by a lake."
    assert own_stem("A town: day") == f"A town- day ({own_stem('A town: day')[-9:-1]})"


def test_a_prompt_that_stands_twice_has_all_its_dimensions(info):
    found = suite.read_suite(info)
    assert found.standard and found.dimensions == suite.DIMENSIONS
    texts = ["In a still frame, a stop sign", "Fireworks.", "a bus"]
    assert [prompt.text for prompt in found.prompts] == texts
    # VBench's README: five of each, and 25 where it then takes the static ones.
    assert [prompt.samples for prompt in found.prompts] == [25, 5, 5]
    long = suite.read_suite(info, long=True)
    assert [prompt.samples for prompt in long.prompts] == [5, 5, 5]


def test_a_dimension_leaves_its_prompts_alone(info):
    found = suite.read_suite(info, dimensions=["temporal_style", "color"])
    assert [prompt.text for prompt in found.prompts] == ["Fireworks."]
    assert found.prompts[0].number == 1  # in the whole list: its seeds stay


def test_the_model_is_told_the_augmented_prompt(info, tmp_path):
    told = tmp_path / "augmented.txt"
    told.write_text("A red sign.\nA night sky.\nA red bus.\nAnother sky.\n")
    found = suite.read_suite(info, told)
    assert [(prompt.stem, prompt.said) for prompt in found.prompts[1:]] == [
        ("Fireworks.", "A night sky."),
        ("a bus", "A red bus."),
    ]
    told.write_text("A red sign.\n")
    with pytest.raises(ValueError, match="has 1 lines and .* 4 prompts"):
        suite.read_suite(info, told)


def test_a_text_is_a_list_of_ones_own(lines):
    found = suite.read_suite(lines)
    assert not found.standard and found.dimensions == suite.FOR_ANY_PROMPT
    assert [prompt.text for prompt in found.prompts] == [
        "A river/brook: wide?",
        "A town by a lake.",
    ]
    assert [prompt.samples for prompt in suite.read_suite(lines, first=1).prompts] == [1]
    with pytest.raises(ValueError, match="--dimension names object_class. For these prompts"):
        suite.read_suite(lines, dimensions=["object_class"])


@pytest.mark.parametrize(
    "name, text, says",
    [
        ("a.json", "[{}]", "is not VBench's list of prompts .KeyError: 'prompt_en'"),
        ("a.json", "no", "is not VBench's list of prompts"),
        ("a.json", '[{"prompt_en": 3, "dimension": []}]', "a prompt is 3"),
        ("a.json", '[{"prompt_en": " ", "dimension": []}]', "a prompt is ' '"),
        ("a.json", '[{"prompt_en": "a", "dimension": "color"}]', "the dimension of 'a' is color"),
        ("a.json", '[{"prompt_en": "a", "dimension": ["x"]}]', "the dimension of 'a' is .'x'."),
        ("a.json", "[" * 100_000, "is not VBench's list of prompts .RecursionError"),
        ("a.json", "[]", "has no prompts"),
        ("a.txt", "\n\n", "has no prompts"),
    ],
)
def test_another_file_is_no_list(tmp_path, name, text, says):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=says):
        suite.read_suite(tmp_path / name)


def test_a_file_that_cannot_be_read_is_no_list(tmp_path):
    with pytest.raises(ValueError, match=r"none.txt cannot be read: No such file or directory"):
        suite.read_suite(tmp_path / "none.txt")
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="a.txt is no text in UTF-8"):
        suite.read_suite(tmp_path / "a.txt")


def test_a_list_without_prompts_for_a_dimension_is_refused(info):
    with pytest.raises(ValueError, match="has no prompt for color"):
        suite.read_suite(info, dimensions=["color"])
