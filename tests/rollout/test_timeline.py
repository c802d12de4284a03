"""Prompts in time: the counting rules, the text form, and which chunk hears what."""

import pytest
from keepsake.rollout.chunks import plan_chunks
from keepsake.rollout.timeline import (
    Mix,
    PromptStart,
    latent_frame_of,
    parse_timeline,
    pixel_frames,
    plan_prompts,
)


def planned(*starts, frames=24, chunk=3, given=0):
    return plan_prompts(plan_chunks(frames, chunk, given), [[PromptStart(0), *starts]], 4)


def switches(chunks):
    return {chunk.start_frame: chunk.cue.switch.mode for chunk in chunks if chunk.cue.switch}


def test_one_pixel_frame_of_the_first_latent_frame_then_four_of_each():
    """Report 49: after a reset the first VAE call needs one more pixel frame."""
    assert [pixel_frames(latents, 4) for latents in (0, 1, 2, 21)] == [0, 1, 5, 81]
    assert [latent_frame_of(pixel, 4) for pixel in (0, 1, 4, 5, 80)] == [0, 1, 1, 2, 20]
    for latents in range(
        1, 30
    ):  # each pixel frame lies in one latent frame, and the last in the last
        assert (
            latent_frame_of(pixel_frames(latents, 4) - 1, 4) == latents - 1
            and latent_frame_of(pixel_frames(latents, 4), 4) == latents
        )


def test_lines_count_latent_frames_or_seconds():
    found = parse_timeline(
        "0: a lighthouse: at dawn\n\n 12 : a storm\n6s: night\n1.5s: noon", 16.0, "recache", 4, 9
    )
    assert [text for _, text in found] == ["a lighthouse: at dawn", "a storm", "night", "noon"]
    assert [start.frame(4) for start, _ in found] == [0, 12, 24, 6]
    assert found[0][0] == PromptStart(0, recache_frames=9) and found[1][0] == PromptStart(
        12, "recache", 4, 9
    )


def test_lines_count_minutes_and_seconds():
    found = parse_timeline(
        "0:00: downtown: at day\n1:05: harbour\n 2:00.5 :night\n1:02:03: 4 ships\n9: 16:9 film",
        16.0,
        "cut",
        0,
        9,
    )
    assert [text for _, text in found] == [
        "downtown: at day",
        "harbour",
        "night",
        "4 ships",
        "16:9 film",
    ]
    assert [start.start for start, _ in found] == [0, 65 * 16, 1928, 3723 * 16, 9] and [
        start.in_pixels for start, _ in found
    ] == [True] * 4 + [False]
    assert parse_timeline("0:35mm film\n4:2 dogs", 16.0, "cut", 0, 9)[1] == (
        PromptStart(4, "cut", 0, 9),
        "2 dogs",
    )


@pytest.mark.parametrize(
    "line",
    ["1:00 harbour", "1:00", "1:75: harbour", "1:5: harbour", "1:16:9 film", "1:02:03 harbour"],
)
def test_what_may_be_a_time_or_a_prompt_is_refused(line):
    with pytest.raises(
        ValueError, match=f"Line 2 of the timeline is '{line}', which is neither a time nor"
    ):
        parse_timeline(f"0: downtown\n{line}", 16.0, "swap", 0, 12)


def test_notes_tell_the_line_as_it_was_written_and_which_prompt_changes():
    starts = [start for start, _ in parse_timeline("0: a\n1s: b\n1:00: c", 16.0, "swap", 0, 12)]
    *_, notes = plan_prompts(
        plan_chunks(12, 3), [[PromptStart(0)], starts], 4, names=["prompt", "negative prompt"]
    )
    assert notes == (
        "Latent frame 6: the negative prompt changes to that of 1s (swap).",
        "The negative prompt of latent frame 240 (1:00) never came in: no chunk begins between it "
        "and the next prompt or the end.",
    )


@pytest.mark.parametrize(
    "text, words",
    [
        ("a lighthouse | a storm", "Line 1 of the timeline is 'a lighthouse | a storm'"),
        ("0: a\n\n1.5: b", "Line 3 of the timeline is '1.5: b'"),
        ("0: a\n48: ", "Line 2 of the timeline, '48:', has no prompt"),
        ("0: a\n1:00:", "Line 2 of the timeline, '1:00:', has no prompt"),
        ("0: a\n0s: b", "Line 2 of the timeline begins where an earlier"),
        ("0: a\n2: b\n2: c", "Line 3"),
        ("48: a", "no prompt for the beginning"),
        (" \n", "no prompt for the beginning"),
    ],
)
def test_prompts_without_a_frame_are_refused_by_line(text, words):
    """Report 48: prompts split by a bar; ours have explicit frames."""
    with pytest.raises(ValueError, match=words.replace("|", r"\|")):
        parse_timeline(text, 16.0, "swap", 0, 12)


def test_numbers_that_mean_nothing_are_refused():
    for fps in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="fps is .*. Use the pictures a second"):
            parse_timeline("0: a", fps, "swap", 0, 12)
    for values, name in (
        ((-1,), "start_frame"),
        ((3, "swap", -1), "blend"),
        ((3, "recache", 0, -1), "recache_frames"),
    ):
        with pytest.raises(ValueError, match=f"{name} is -1 latent frames"):
            PromptStart(*values)


def test_a_prompt_takes_effect_with_the_next_chunk_that_begins_at_or_after_it():
    for start, chunk in ((6, 6), (7, 9), (9, 9)):
        chunks, mixes, notes = planned(PromptStart(start))
        assert switches(chunks) == {chunk: "swap"} and mixes == [(Mix(0),), (Mix(1),)]
        assert [c.cue.prompt for c in chunks] == [int(c.start_frame >= chunk) for c in chunks]
        assert notes == (f"Latent frame {chunk}: the prompt changes (swap).",)


def test_a_prompt_that_no_chunk_begins_with_is_told():
    chunks, mixes, notes = planned(PromptStart(7), PromptStart(8), PromptStart(40))
    assert switches(chunks) == {9: "swap"} and mixes == [(Mix(0),), (Mix(2),)]
    assert [note.split(":")[0] for note in notes[1:]] == [
        "The prompt of latent frame 7 never came in",
        "The prompt of latent frame 40 never came in",
    ]


def test_of_chunks_that_were_made_before_nothing_is_told():
    starts = [PromptStart(start) for start in (0, 7, 8, 12)]
    marked, mixes, notes = plan_prompts(plan_chunks(24, 3), [starts], 4)
    assert plan_prompts(plan_chunks(24, 3), [starts], 4, finished=4) == (
        marked,
        mixes,
        ("Latent frame 12: the prompt changes (swap).",),
    )
    assert len(notes) == 3


def test_a_blend_changes_the_text_by_chunk_and_recaches_once_at_its_end():
    """Report 38: a blended transition resets the cache at every blend step."""
    chunks, mixes, notes = planned(PromptStart(6, "recache", 8))
    assert switches(chunks) == {6: "swap", 9: "swap", 12: "recache"}
    assert mixes == [(Mix(0),), (Mix(1, 3 / 8),), (Mix(1, 6 / 8),), (Mix(1),)]
    assert notes == ("Latent frame 6: the prompt changes (recache, blended over 8 frames).",)


def test_a_blend_that_the_take_ends_is_told():
    chunks, _, notes = planned(PromptStart(18, "recache", 9))
    assert (
        switches(chunks) == {18: "swap", 21: "swap"}
        and "not complete when the take ended" in notes[1]
    )


def test_a_blend_that_reaches_past_the_next_prompt_is_refused():
    with pytest.raises(
        ValueError,
        match="blend over 9 latent frames is not done when the next prompt begins, at latent "
        "frame 12",
    ):
        planned(PromptStart(6, blend=9), PromptStart(12))


def test_a_cut_begins_a_shot_and_cannot_be_blended():
    chunks, *_ = planned(PromptStart(6, "cut"), PromptStart(13, "cut"))
    assert [chunk.cue.shot for chunk in chunks] == [0, 0, 6, 6, 6, 15, 15, 15]
    with pytest.raises(ValueError, match="a cut with a blend of 3"[2:]):
        PromptStart(6, "cut", 3)


def test_where_a_cut_forgets_nothing_the_take_stays_one_shot():
    starts = [[PromptStart(0), PromptStart(6, "cut")]]
    chunks, *_ = plan_prompts(plan_chunks(12, 3), starts, 4, cut_forgets=False)
    assert switches(chunks) == {6: "cut"} and {chunk.cue.shot for chunk in chunks} == {0}


def test_reset_and_transition_have_one_rule():
    """Report 41: unclear what reset and transition mean together. Streams that change at once do
    what touches most.
    """
    both = [
        [PromptStart(0), PromptStart(6, "swap")],
        [PromptStart(0), PromptStart(6, "cut"), PromptStart(12, "recache", 3, 5)],
    ]
    chunks, mixes, _ = plan_prompts(plan_chunks(18, 3), both, 4)
    assert (
        switches(chunks) == {6: "cut", 12: "recache"} and chunks[4].cue.switch.recache_frames == 5
    )
    assert mixes == [(Mix(0), Mix(0)), (Mix(1), Mix(1)), (Mix(1), Mix(2))]
