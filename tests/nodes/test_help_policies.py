"""What the help pages of policies say: their figures are those of dev/FIGURES.md, and what they
name as *not with* is what the code refuses.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from keepsake.kv_policies import (
    SWITCHES,
    DeCoPrune,
    DeepForcing,
    DeepSink,
    DirectedForcing,
    DummyForcing,
    EmaSink,
    FlashForward,
    ForcingKV,
    FullKV,
    HeadMap,
    Hierarchical,
    InfinityRope,
    KVPolicy,
    KVStorage,
    MemRope,
    MonarchRT,
    RollingForcing,
    RollingSink,
    SinkWindow,
    TempDiff,
    WorldKV,
)
from keepsake.kv_policies.schedule.context_recompute import ContextRecompute
from keepsake.kv_policies.take import Geometry, Take

ROOT = Path(__file__).parents[2]
ROWS = {  # of the field's table
    "DummyForcing": "dummy forcing",
    "ForcingKV": "forcing kv",
    "DeepForcing": "deep forcing",
    "DeepSink": "deep sink",
    "InfinityRope": "infinity rope",
    "RollingSink": "rolling sink",
    "MemRope": "memrope",
    "EmaSink": "reward forcing",
    "TempDiff": "temp diff",
    "MonarchRT": "monarch rt",
    "TaylorSeer": "taylorseer",
    "SinkWindow": "sink window",
    "DeCoPrune": "decoprune",
    "DirectedForcing": "directed",
    "FlashForward": "flash forward",
    "Hierarchical": "hiar",
    "RollingForcing": "rolling",
    "ContextRecompute": "krea",
}
GEOMETRY = Geometry(
    layers=30, heads=12, head_dim=128, grid=(30, 52), chunk_frames=3, temporal_channels=44
)
TAKE = Take(total_frames=60, given_frames=12, sigmas=(1.0, 0.9, 0.8, 0.6, 0.0), seed=0)
RETENTIONS = [
    DummyForcing(),
    ForcingKV(head_map=HeadMap("model", 12, ((0,),) * 30)),
    DeepForcing(),
    DeepSink(),
    InfinityRope(),
    RollingSink(),
    MemRope(),
    EmaSink(),
    TempDiff(),
    SinkWindow(),
    DeCoPrune(),
    WorldKV(),
]
MOVING = {  # policies that turn the same keys again and again with these numbers
    TempDiff: TempDiff(reindex="periodic"),
    DeCoPrune: DeCoPrune(reindex="periodic"),
    SinkWindow: SinkWindow(3, 21, "shifted"),
}
OTHERS = {  # by the name that a page has for it
    "Directed Forcing": dict(selection=DirectedForcing()),
    "MonarchRT": dict(selection=MonarchRT()),
    "KV Storage": dict(storage=KVStorage("int8", sink_frames=0)),
    "FlashForward Anchors": dict(schedule=FlashForward()),
    "Hierarchical (HiAR)": dict(schedule=Hierarchical()),
    "Rolling Forcing": dict(schedule=RollingForcing()),
    "Krea Recompute": dict(schedule=ContextRecompute()),
}


def page_of(name: str) -> str:
    """A page's text, each paragraph on one line."""
    page = (ROOT / "web/docs" / f"KeepsakePolicy{name}.md").read_text(encoding="utf-8")
    return re.sub(r"(?<!\n)\n(?!\n)", " ", page)


def part_of(name: str, begins: str) -> str:
    (part,) = re.findall(rf"^\*\*{begins}\*\* .*$", page_of(name), re.MULTILINE)
    return part


def field() -> dict[str, list[str]]:
    """The cells of each row of the field's table."""
    figures = (ROOT / "dev/FIGURES.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z0-9 ]+) \| (.*) \|$", figures, re.MULTILINE)
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows}


def is_refused(policy: KVPolicy) -> bool:
    try:
        policy.check(GEOMETRY, TAKE)
    except ValueError:
        return True
    return False


@pytest.mark.parametrize("name", ROWS)
def test_measured_figures_are_those_of_the_field(name):
    recall, own, share, read, speedup, drift, seam = field()[ROWS[name]]
    measured = part_of(name, "Measured")
    assert f"recall {recall.split(' ')[0]}" in measured
    if share != "1.000":  # else all of it, in words
        assert f"{100 * float(share):.1f} % of the bytes that *Full* holds" in measured
    if speedup:
        assert f"{speedup} times as fast" in measured
    for figure in re.findall(r"(?<=still picture over 81 frames is )\.\d+", measured):
        assert figure == drift


@pytest.mark.parametrize("retention", RETENTIONS, ids=lambda retention: type(retention).__name__)
def test_a_page_names_what_is_refused(retention):
    not_with = part_of(type(retention).__name__, "Not with")
    policy = KVPolicy(retention)
    assert not is_refused(policy)
    refused = {name for name, slot in OTHERS.items() if is_refused(replace(policy, **slot))}
    named = {name for name in OTHERS if f"*{name}*" in not_with}
    if kind := MOVING.get(type(retention)):  # with other numbers than the default ones
        assert is_refused(KVPolicy(kind, storage=KVStorage("int8", sink_frames=0)))
        refused.add("KV Storage")
    assert named == refused


def test_directed_forcing_and_monarch_name_the_retentions_that_they_refuse():
    names = {
        "DeCoPrune": DeCoPrune(),
        "Forcing-KV": RETENTIONS[1],
        "Deep Forcing": DeepForcing(),
        "TempDiff": TempDiff(),
        "Rolling Sink": RollingSink(),
        "MemRoPE": MemRope(),
        "Dummy Forcing": DummyForcing(),
        "Full": FullKV(),
    }
    for page, selection in (("DirectedForcing", DirectedForcing()), ("MonarchRT", MonarchRT())):
        not_with = part_of(page, "Not with")
        refused = {name for name, kept in names.items() if is_refused(KVPolicy(kept, selection))}
        assert refused == {name for name in names if f"*{name}*" in not_with}


@pytest.mark.parametrize(
    "page, schedule",
    [
        ("FlashForward", FlashForward()),
        ("Hierarchical", Hierarchical()),
        ("RollingForcing", RollingForcing()),
        ("ContextRecompute", ContextRecompute()),
    ],
)
def test_a_schedule_names_what_it_refuses(page, schedule):
    not_with = part_of(page, "Not with")
    slots = {name: slot for name, slot in OTHERS.items() if "schedule" not in slot}
    slots |= {
        "Sink + Window": dict(retention=SinkWindow()),
        "DeCoPrune": dict(retention=DeCoPrune()),
    }
    policy = KVPolicy(schedule=schedule)
    refused = {name for name, slot in slots.items() if is_refused(replace(policy, **slot))}
    assert refused == {name for name in slots if f"*{name}*" in not_with}
    ways = {way for way in SWITCHES if f"*{way}*" in not_with}
    assert ways == set(SWITCHES) - set(schedule.switches)
