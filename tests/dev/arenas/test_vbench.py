"""dev/bench vbench: VBench finds the videos by their names, and its scores come back."""

import json
import os
import shlex
import subprocess
import sys
from argparse import Namespace
from types import SimpleNamespace

import av
import pytest
import torch
from arenas.vbench import calls, command, scores, suite, table, takes, totals
from arenas.vbench.flags import FLAGS
from arenas.vbench.names import tells_case
from support.pack import ROOT


def flags(**changes):
    values = {name: options.get("default", False) for name, options in FLAGS.items()}
    values |= {"checkpoint": "demo", "quick": False, "frames": "3", "size": "32x64"}
    return Namespace(**{**values, **changes})


def folder_at(path):
    return takes.VideoFolder(path, {})


def test_videos_of_a_prompt_differ_and_policies_share_their_seeds(lines):
    prompts = suite.read_suite(lines, samples=25).prompts
    seeds = [takes.seed_of(prompt, index, 7) for prompt in prompts for index in range(25)]
    assert seeds[:2] == [7, 8] and len(set(seeds)) == 50


def test_two_names_that_differ_by_a_capital_need_a_file_system_that_tells(tmp_path, monkeypatch):
    assert tells_case(tmp_path) and not list(tmp_path.iterdir())
    prompts = [
        suite.Prompt(number, text, text, text, 1)
        for number, text in enumerate(["A fantasy landscape", "a bus", "a fantasy landscape"])
    ]
    folders, said = [folder_at(tmp_path)], []
    assert takes.distinct(prompts, folders, said.append) == prompts
    monkeypatch.setattr(takes, "tells_case", lambda folder: False)
    assert takes.distinct(prompts, folders, said.append) == prompts[:2]
    assert said[0].startswith("'a fantasy landscape' is left out")


def test_the_lines_of_short_videos(info, tmp_path):
    static, rest = calls.calls(folder_at(tmp_path), suite.read_suite(info), 21)[0:3:2]
    assert shlex.split(static)[:4] == [
        "python",
        "static_filter.py",
        "--videos_path",
        str(tmp_path / "videos"),
    ]
    words = shlex.split(rest)
    assert words[1] == "evaluate.py" and "temporal_flickering" not in words
    dimensions = words[words.index("--dimension") + 1 : words.index("--output_path")]
    assert len(dimensions) == 15 and "--mode" not in words


def test_the_lines_of_long_videos(info, lines, tmp_path):
    assert not calls.is_long(40) and calls.is_long(41)  # 157 and 161 pictures at 16 a second
    rest, static = calls.calls(folder_at(tmp_path), suite.read_suite(info, long=True), 120)
    assert "eval_long.py" in rest and rest.endswith("--mode long_vbench_standard --dev_flag")
    assert static.endswith("--mode long_vbench_standard --dev_flag --static_filter_flag")
    (own,) = calls.calls(folder_at(tmp_path), suite.read_suite(lines), 120)
    assert own.endswith("--mode long_custom_input --dev_flag") and "prompt_file" not in own
    (short,) = calls.calls(folder_at(tmp_path), suite.read_suite(lines), 21)
    assert f"--mode custom_input --prompt_file {tmp_path / 'prompts.json'}" in short
    few = suite.read_suite(info, samples=2, long=True)
    assert "--num_of_samples_per_prompt 2" in calls.calls(folder_at(tmp_path), few, 120)[0]


def write_scores(folder, name="results_2026-01-01-10:00:00", **dimensions):
    folder.scores.mkdir(exist_ok=True)
    (folder.scores / f"{name}_eval_results.json").write_text(json.dumps(dimensions))


def videos(**points):
    return [{"video_path": path, "video_results": value} for path, value in points.items()]


def test_scores_are_vbenchs_and_the_interval_is_over_prompts(tmp_path):
    folder = folder_at(tmp_path)
    of_videos = {"v/a bus-0.mp4": 40.0, "v/a bus-1.mp4": 60.0, "v/Fireworks.-0.mp4": 70.0}
    long = {
        "v/split_clip/a bus-0/a bus-0_000.mp4": True,
        "v/split_clip/a bus-0/a bus-0_001.mp4": True,
        "v/split_clip/Fireworks.-Scene-0/Fireworks.-Scene-0_000.mp4": True,
    }
    write_scores(
        folder,
        dynamic_degree=[1.0, videos(**long), []],
        imaging_quality=[0.57, videos(**of_videos)],
    )
    found = scores.read_scores(folder.scores)
    assert list(found) == ["dynamic_degree", "imaging_quality"]
    assert found["dynamic_degree"] == (1.0, 0.0, 2)
    value, half, prompts = found["imaging_quality"]
    assert (value, prompts) == (0.57, 2)
    assert half == pytest.approx(0.1)  # two prompts, .5 and .7: both may be drawn twice


def test_a_later_result_takes_the_place_of_an_earlier_one(tmp_path):
    folder = folder_at(tmp_path)
    write_scores(folder, "one", color=[0.5, []], scene=[0.1, []])
    write_scores(folder, "two", color=[0.6, []])
    os.utime(folder.scores / "one_eval_results.json", (1, 1))
    found = scores.read_scores(folder.scores)
    assert (found["color"].value, found["scene"].value) == (0.6, 0.1)


def test_a_file_that_vbench_did_not_write_is_refused(tmp_path):
    folder = folder_at(tmp_path)
    for wrong in (dict(color="high"), dict(color=[0.5, [{}]]), dict(colour=[0.5, []])):
        write_scores(folder, **wrong)
        with pytest.raises(ValueError, match="is no result of VBench"):
            scores.read_scores(folder.scores)


def test_totals_are_vbenchs():
    best = {name: most for name, (_, most, _) in (totals.QUALITY | totals.SEMANTIC).items()}
    assert totals.totals(best) == {"quality": 1, "semantic": 1, "total": 1}
    # A flicker of nothing but its least: one weight of 6.5.
    worse = {**best, "temporal_flickering": 0.6293}
    assert totals.totals(worse)["quality"] == pytest.approx(5.5 / 6.5)
    assert totals.totals(worse)["total"] == pytest.approx((4 * 5.5 / 6.5 + 1) / 5)
    assert totals.totals({name: best[name] for name in totals.QUALITY}) == {"quality": 1}


def test_the_command_makes_the_videos_goes_on_and_reads_the_scores(lines, tmp_path):
    out = tmp_path / "out"
    args = flags(
        prompts=str(lines),
        policy=["full", "sinkwindow:window_frames=3,sink_frames=0"],
        out=str(out),
        frames="3,4",
        first=1,
    )
    said = []
    rows, failed = command.run(args, said.append)
    assert not failed
    assert [(row["policy"], row["frames"], row["videos"]) for row in rows] == [
        ("full", 3, 1),
        ("sinkwindow_window_frames=3,sink_frames=0", 3, 1),
        ("full", 4, 1),
        ("sinkwindow_window_frames=3,sink_frames=0", 4, 1),
    ]
    # 1. Only videos lie where VBench looks, under the names that its list of prompts has.
    folder = out / "frames_3/full"
    names = json.loads((folder / "prompts.json").read_text())
    assert {path.name for path in (folder / "videos").iterdir()} == names.keys()
    assert list(names.values()) == ["A river/brook: wide?"]
    with av.open(str(folder / "videos" / next(iter(names)))) as video:
        assert (video.streams.video[0].average_rate, len(list(video.decode(video=0)))) == (16, 9)
    # 2. What is left is reckoned over all lengths.
    lines = [line for line in said if "left, about" in line]
    assert lines[0].startswith("1/4 frames_3/full/A river-brook- wide (")
    assert "; 3 left, about " in lines[0]
    # 3. VBench's scores stand in the table, by the folders alone.
    write_scores(table.folders_in(out)[0][2], aesthetic_quality=[0.61, []])
    found, _ = command.run(flags(table=True, out=str(out)))
    assert [row["aesthetic_quality"] for row in found] == [0.61, None, None, None]
    assert found[0]["speedup"] == 1 and found[0]["ci95"] == [["aesthetic_quality", 0.0]]


def contents(folder) -> dict[str, bytes | dict]:
    """All files, without what a clock says."""
    files = {}
    for path in sorted(folder.rglob("*.*")):
        content = path.read_bytes()
        if path.suffix == ".json":
            content = json.loads(content)
            content.pop("measured", None)
        files[str(path.relative_to(folder))] = content
    return files


def test_interrupted_and_restarted_gives_the_same_files(lines, tmp_path, monkeypatch):
    def asked(name, **changes):
        return flags(prompts=str(lines), policy=["full"], out=str(tmp_path / name), **changes)

    command.run(asked("whole"), lambda line: None)
    take_of, made = takes.take_of, []

    def interrupted(*given):
        if made:
            raise KeyboardInterrupt
        made.append(given)
        return take_of(*given)

    monkeypatch.setattr(takes, "take_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        command.run(asked("parts"), lambda line: None)
    (video,) = (tmp_path / "parts").rglob("*.mp4")
    was = video.stat().st_mtime_ns
    monkeypatch.setattr(takes, "take_of", take_of)
    said = []
    # The first prompt alone: a shorter list of the same file takes nothing away.
    command.run(asked("parts", first=1), said.append)
    assert said[0] == "1 of 1 takes are there already."
    assert len(json.loads((tmp_path / "parts/frames_3/full/prompts.json").read_text())) == 2
    command.run(asked("parts"), said.append)
    assert video.stat().st_mtime_ns == was
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    # What is told otherwise would be another take under the same name.
    told = tmp_path / "told.txt"
    told.write_text("A river.\nA town.\n")
    with pytest.raises(ValueError, match=r"has takes of other settings \(prompts\)"):
        command.run(asked("parts", told=str(told)), lambda line: None)
    # And in a shorter list, a prompt has another seed.
    lines.write_text("A town by a lake.\n")
    with pytest.raises(ValueError, match=r"has takes of other settings \(prompts\)"):
        command.run(asked("parts"), lambda line: None)


def test_one_broken_take_stops_no_other(lines, tmp_path, monkeypatch):
    def stub(maker, prompt, index, protocol):
        if prompt.number:
            raise RuntimeError("out of luck")
        measured = {"continuation_seconds": 1.0, "frames_per_second": 4.0, "peaks": {}}
        record = {"peak_cache_bytes": 1, "measured": measured}
        return torch.zeros(9, 32, 64, 3, dtype=torch.uint8), 16, record

    monkeypatch.setattr(takes, "take_of", stub)
    asked = flags(prompts=str(lines), policy=["full"], out=str(tmp_path))
    rows, failed = command.run(asked, lambda line: None)
    assert failed == ["frames_3/full/A town by a lake.-0"] and rows[0]["videos"] == 1
    folder = tmp_path / "frames_3/full"
    assert "out of luck" in (folder / "A town by a lake.-0.error.txt").read_text()
    # A record that something else has broken is named.
    (record,) = folder.glob("A river*.json")
    record.write_text("{")
    with pytest.raises(ValueError, match="json is broken .*Delete it, and the same command"):
        command.run(flags(table=True, out=str(tmp_path)))
    record.unlink()
    with pytest.raises(ValueError, match="has no takes"):
        command.run(flags(table=True, out=str(tmp_path)))


def test_without_weights_the_hours_are_the_plans(info):
    args = flags(
        prompts=str(info),
        checkpoint="self_forcing_dmd.safetensors",
        policy=["full", "sinkwindow"],
        frames="21,120",
        size="",
        dry_run=True,
        out="nowhere",
    )
    rows, _ = command.run(args, lambda line: None)
    by_row = {(row["policy"], row["frames"]): row for row in rows}
    assert by_row["full", 21]["videos"] == 35 and by_row["full", 120]["videos"] == 15
    assert by_row["full", 120]["hours"] > by_row["sinkwindow", 120]["hours"]
    # 30 layers 1536 wide, 1560 tokens of a latent frame, two sides of two bytes.
    assert by_row["full", 120]["cache_gib"] == pytest.approx(
        30 * 1536 * 1560 * 120 * 4 / 2**30, rel=0.01
    )


@pytest.mark.parametrize(
    "changes, says",
    [
        (dict(prompts=""), "--prompts is not given"),
        (dict(prompts="/no/list.txt"), "/no/list.txt cannot be read"),
        (dict(first=-1), "--first is -1"),
        (dict(samples=101), "--samples is 101"),
        (dict(seed=-1), "--seed is -1"),
        (dict(frames="3,3"), "--frames is '3,3'"),
        (dict(checkpoint="/no/file.safetensors"), "Model in folder 'diffusion_models' with"),
        (dict(policy=["headless"]), "--policy names 'headless'"),
        (dict(policy=["rollingforcing:window_frames=3"]), "window_frames is 3, and the chunks"),
        (dict(frames="21,x"), "--frames is '21,x'"),
        (dict(size="480"), "--size is '480'"),
        (dict(dimension=["colour"]), "--dimension names colour"),
    ],
)
def test_flags_that_cannot_be_are_refused(info, tmp_path, changes, says):
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=says):
        command.run(flags(**{"prompts": str(info), "out": str(out), **changes}))
    assert not out.exists()


def test_a_model_that_begins_with_an_image_is_refused():
    profile = SimpleNamespace(name="LingBot-World v2")
    maker = SimpleNamespace(load=lambda: None, takes_start_image=True, profile=profile)
    with pytest.raises(ValueError, match="LingBot-World v2 begins with an image"):
        command.check(maker, {})


def test_what_is_half_written_does_not_lie_among_the_videos(tmp_path, monkeypatch):
    """VBench takes the first name it meets there for a video's."""
    folder, replace = folder_at(tmp_path), os.replace

    def looked_at(part, path):
        assert part.parent == tmp_path
        replace(part, path)

    monkeypatch.setattr("os.replace", looked_at)
    folder.write("a town-0", torch.zeros(1, 32, 64, 3, dtype=torch.uint8), 16, {})
    assert folder.has("a town-0") and not list(tmp_path.rglob("*.part"))


def test_a_folder_without_takes_has_no_table(tmp_path):
    with pytest.raises(ValueError, match="has no takes"):
        table.folders_in(tmp_path)


def test_the_module_runs_in_an_environment_of_ones_own(lines):
    """As the help says, where the checkout itself is on the path."""
    done = subprocess.run(
        [sys.executable, "-m", "dev.arenas", "vbench", "--dry-run", "--prompts", str(lines)]
        + ["--checkpoint", "self_forcing_dmd.safetensors", "--policy", "profile"],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert (row["policy"], row["videos"]) == ("profile", 2)


def test_a_path_that_is_no_comfyui_is_told_of(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "dev.arenas", "vbench", "--table"],
        cwd=ROOT,
        env=os.environ | {"COMFYUI_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr.startswith(f"A bench needs a ComfyUI, and COMFYUI_PATH is '{tmp_path}'.")
