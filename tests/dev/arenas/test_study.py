"""A study: the sheet tells nobody which take is which, the page saves what people chose, and the
choices are counted as the key says.
"""

import json

import av
import numpy as np
import pytest
from arenas.study import preference, sheet
from arenas.study.side_by_side import GAP, join
from support.browser import NoBrowser, chromium

DARK, LIGHT = 40, 200  # what the first and the second policy's takes show


def save(path, shade, pictures=6, size=(32, 48), rate=8):
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=rate)
        stream.height, stream.width = size
        for _ in range(pictures):
            picture = np.full((*size, 3), shade, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


def pictures_of(path):
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@pytest.fixture
def takes(tmp_path):
    """Five takes of two policies; the names are tasks and seeds."""
    for number in range(5):
        save(tmp_path / f"full/seed2/task {number}.mp4", DARK)
        save(tmp_path / f"window/seed2/task {number}.mp4", LIGHT)
    return tmp_path


def key_of(lefts, study="0123abcd"):
    pairs = {
        f"{number:03}": {"name": f"{number}.mp4", "left": left}
        for number, left in enumerate(lefts, 1)
    }
    return {"study": study, "first": "full", "second": "window", "pairs": pairs}


def saved(path, person, *choices, study="0123abcd"):
    """A file as the page saves it, choices for pair 001 and following."""
    chosen = {f"{number:03}": choice for number, choice in enumerate(choices, 1)}
    path.write_text(json.dumps({"study": study, "person": person, "choices": chosen}))
    return path


def test_two_takes_become_one_video_until_the_shorter_ends(tmp_path):
    save(tmp_path / "a.mp4", DARK, pictures=6)
    save(tmp_path / "b.mp4", LIGHT, pictures=4)
    assert join(tmp_path / "a.mp4", tmp_path / "b.mp4", tmp_path / "both.mp4") == 2
    pictures = pictures_of(tmp_path / "both.mp4")
    assert len(pictures) == 4 and pictures[0].shape == (32, 2 * 48 + GAP, 3)
    assert abs(pictures[3][:, :44].mean() - DARK) < 4
    assert abs(pictures[3][:, 52 + GAP :].mean() - LIGHT) < 4


def test_takes_of_other_sizes_or_rates_are_refused(tmp_path):
    save(tmp_path / "a.mp4", DARK)
    save(tmp_path / "b.mp4", LIGHT, rate=16)
    with pytest.raises(ValueError, match="48 x 32 at 8 per second .* 48 x 32 at 16 per second"):
        join(tmp_path / "a.mp4", tmp_path / "b.mp4", tmp_path / "both.mp4")


def test_the_key_says_what_each_video_shows(takes):
    key = sheet.make(takes / "full", takes / "window", takes / "out", say=lambda line: None)
    assert json.loads((takes / "out/key.json").read_text()) == key
    assert {pair["name"] for pair in key["pairs"].values()} == {
        f"seed2/task {number}.mp4" for number in range(5)
    }
    sides = [pair["left"] for pair in key["pairs"].values()]
    assert sides.count("first") == 3  # of five: half of them
    for number, pair in key["pairs"].items():
        shade = pictures_of(takes / f"out/sheet/videos/{number}.mp4")[0][:, :44].mean()
        assert abs(shade - (DARK if pair["left"] == "first" else LIGHT)) < 4


def test_the_sheet_alone_tells_nobody_which_is_which(takes):
    sheet.make(takes / "full", takes / "window", takes / "out", say=lambda line: None)
    handed_out = sorted(path.name for path in (takes / "out/sheet").rglob("*") if path.is_file())
    assert handed_out == [*(f"00{number}.mp4" for number in range(1, 6)), "index.html"]
    page = (takes / "out/sheet/index.html").read_text()
    assert not any(word in page for word in ("window", "full", "seed2"))


def test_a_seed_draws_the_same_sheet_again(takes):
    keys = [
        sheet.make(takes / "full", takes / "window", takes / out, seed, say=lambda line: None)
        for out, seed in (("one", 3), ("two", 3), ("three", 4))
    ]
    assert keys[0] == keys[1] and keys[0]["pairs"] != keys[2]["pairs"]


def test_a_sheet_is_not_written_over(takes):
    sheet.make(takes / "full", takes / "window", takes / "out", say=lambda line: None)
    with pytest.raises(ValueError, match="has a sheet already"):
        sheet.make(takes / "full", takes / "window", takes / "out", say=lambda line: None)


def test_folders_without_a_common_name_are_refused(takes):
    with pytest.raises(ValueError, match="have none of the same name"):
        sheet.make(takes / "full/seed2", takes / "window", takes / "out")


def test_choices_are_counted_for_the_take_on_that_side(tmp_path):
    key = key_of(["first", "second", "first", "first"])
    files = [
        saved(tmp_path / "a.json", "Ann", "right", "left", "right", "equal"),  # window x 3
        saved(tmp_path / "b.json", "Bob", "left", "right", "right"),  # full x 2, window; one open
    ]
    found = preference.of(key, files)
    assert (found["for_second"], found["for_first"], found["equal"]) == (4, 2, 1)
    assert (found["people"], found["pairs"], found["choices"]) == (2, 4, 7)
    assert found["preference"] == pytest.approx(4.5 / 7)
    assert found["left"] == pytest.approx(2 / 6)


def test_wilsons_interval_is_the_textbooks():
    low, high = preference.wilson(0.5, 100)
    assert (low, high) == (pytest.approx(0.4038, abs=1e-4), pytest.approx(0.5962, abs=1e-4))
    assert preference.wilson(1.0, 10) == (pytest.approx(0.7225, abs=1e-4), pytest.approx(1))


def test_pairs_that_all_agree_leave_nothing_open():
    assert preference.over_pairs([[1.0, 1.0], [1.0]]) == (1, 1)
    assert preference.over_pairs([[1.0] * 9, [0.0] * 9]) == (0, 1)  # two pairs say little


def test_csv_says_the_same_as_json(tmp_path):
    key = key_of(["first", "second"])
    table = tmp_path / "a.csv"
    table.write_text(
        'study,person,pair,choice\n"0123abcd","Ann ""A"", B",001,right\n0123abcd,Bob,001,left\n'
    )
    assert preference.read(table, key) == {
        'Ann "A", B': {"001": "right"},
        "Bob": {"001": "left"},
    }


@pytest.mark.parametrize(
    "name, content, says",
    [
        ("a.json", "{", "is no file of choices"),
        ("a.json", "[1]", "is no file of choices"),
        ("a.json", '{"study": "0123abcd", "person": "Ann"}', "is no file of choices"),
        ("a.csv", "pair,choice\n001,left", "is no file of choices"),
        ("a.csv", "study,person,pair,choice\n0123abcd,,001,left", "does not say whose"),
        (
            "a.csv",
            "study,person,pair,choice\n0123abcd,A,001,left\n0123abcd,A,001,right",
            "two choices of 'A' for pair 001",
        ),
        ("a.json", '{"study": "fff", "person": "A", "choices": {"001": "left"}}', "study fff"),
        ("a.json", '{"study": "0123abcd", "person": "A", "choices": {"9": "left"}}', "pair '9'"),
        ("a.json", '{"study": "0123abcd", "person": "A", "choices": {"001": "up"}}', "has 'up'"),
        ("a.json", '{"study": "0123abcd", "person": ["A"], "choices": {"001": "left"}}', "whose"),
        ("a.json", '{"study": "0123abcd", "person": "A", "choices": {}}', "has no choices"),
    ],
)
def test_a_bad_file_is_refused(tmp_path, name, content, says):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=says):
        preference.of(key_of(["first"]), [tmp_path / name])


def test_a_person_counts_once(tmp_path):
    files = [saved(tmp_path / f"{name}.json", "Ann", "left") for name in "ab"]
    with pytest.raises(ValueError, match="b.json has choices of 'Ann', and so has a file before"):
        preference.of(key_of(["first"]), files)


def test_another_file_is_no_key(tmp_path):
    with pytest.raises(ValueError, match="no key of a sheet"):
        preference.read_key(saved(tmp_path / "a.json", "Ann", "left"))


def test_the_page_asks_for_every_pair_and_saves_what_was_chosen(takes):
    question = "Which one keeps </script> its world?"
    key = sheet.make(
        takes / "full", takes / "window", takes / "out", 0, question, say=lambda line: None
    )
    try:
        with chromium() as browser:
            tab = browser.new_page(accept_downloads=True)
            faults = []
            tab.on("pageerror", lambda error: faults.append(str(error)))
            tab.goto((takes / "out/sheet/index.html").as_uri())
            assert tab.locator("#start .question").text_content() == question
            tab.fill("[name=person]", "Ann, A")
            tab.click("text=Begin")
            for number in range(5):
                right = tab.locator("[data-choice=right]")
                assert tab.locator("#place").text_content() == f"{number + 1} of 5"
                assert right.is_disabled()  # not watched yet
                tab.evaluate("seen.add(study.pairs[state.at]); allow()")  # a long look
                (tab.locator("[data-choice=equal]") if number == 4 else right).click()
            files = []
            for kind in ("json", "csv"):
                with tab.expect_download() as download:
                    tab.click(f"[data-save={kind}]")
                assert download.value.suggested_filename == f"choices_{key['study']}_Ann_A.{kind}"
                files.append(takes / f"saved.{kind}")
                download.value.save_as(files[-1])
            assert not faults
    except NoBrowser as missing:
        pytest.skip(str(missing))
    assert preference.read(files[0], key) == preference.read(files[1], key)
    assert preference.read(files[0], key) == {
        "Ann, A": {**{f"00{number}": "right" for number in range(1, 5)}, "005": "equal"}
    }
