"""The policies that the benches compare, by name.

POLICIES are the rows of `dev/bench field`; VARIANTS run where they are named. A retention, a
selection or a schedule that is new in kv_policies takes part by itself, with its defaults; one that
needs other parameters here has a line below. `--add FILE` adds what another pack's file defines,
see `add`.

A method with a window of its own has the published one (MemRoPE 12 latent frames, Reward Forcing 9,
Infinity-RoPE and Krea 6); what a method leaves open is the same for all, 21 in reach (27 that
Rolling Forcing needs at 8 steps).

`decoprune` and its controls have the node's defaults, mode valley among them: the threshold is
found from the take. Head map and head table are the shipped ones; the table is a proxy, measured by
drift of the latents (`x0_drift`) and not by the paper's Distribution Matching loss.
"""

import importlib.util
import re
import sys
from contextlib import suppress
from pathlib import Path

from keepsake.kv_policies import (
    RETENTIONS,
    SCHEDULES,
    SELECTIONS,
    CleanPass,
    ContextRecompute,
    DeCoPrune,
    DeCoPruneHS,
    DirectedForcing,
    EmaSink,
    FlashForward,
    ForcingKV,
    FullKV,
    HeadMap,
    HeadTable,
    Hierarchical,
    KVPolicy,
    KVStorage,
    MemRope,
    RandomPrune,
    ReadAll,
    ReversePrune,
    RollingForcing,
    SinkWindow,
    TaylorSeer,
    TempDiff,
    TempDiffPrune,
)
from keepsake.nodes.policies.decoprune import PolicyDeCoPrune
from support.pack import ROOT

FILES = ROOT / "demo/heads"
MAP = HeadMap.from_json((FILES / "kv_head_maps/demo_world.json").read_text(), "demo_world")
TABLE = HeadTable.from_json((FILES / "kv_head_tables/demo_world.json").read_text(), "demo_world")
DEFAULTS = {
    part.id: part.default
    for part in PolicyDeCoPrune.define_schema().inputs
    if "default" in part.as_dict()
}

RETAINING = {
    "full": FullKV(),
    "sink_window": SinkWindow(3, 21),
    "decoprune": DeCoPrune(**DEFAULTS),
    "random": RandomPrune(DeCoPrune(**DEFAULTS)),
    "decoprune_hs": DeCoPruneHS(**DEFAULTS, head_map=MAP),
    "forcing_kv": ForcingKV(head_map=MAP),
    "reverse": ReversePrune(DeCoPrune(**DEFAULTS)),
    "temporal_difference": TempDiffPrune(DeCoPrune(**DEFAULTS)),
    "temp_diff": TempDiff(),
    "memrope": MemRope(),
    "reward_forcing": EmaSink(),
}
SELECTING = {"directed": DirectedForcing(head_table=TABLE)}
SCHEDULING = {
    "flash_forward": FlashForward(),
    "hiar": Hierarchical(),
    "rolling": RollingForcing(27),
    "krea": ContextRecompute(),
    "taylorseer": TaylorSeer(),
}


def name_of(kind: type) -> str:
    """A class's name as a row's: `ShortKeys` is short_keys."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


def completed(named: dict, kinds: tuple[type, ...]) -> dict:
    """With the kinds that are not in it yet, as they come; but for those that want parameters."""
    known = {type(part) for part in named.values()}
    rows = dict(named)
    for kind in kinds:
        if kind not in known and kind not in (ReadAll, CleanPass):  # what a policy starts from
            with suppress(TypeError, ValueError):
                rows[name_of(kind)] = kind()
    return rows


RETAINING = completed(RETAINING, RETENTIONS)
SELECTING = completed(SELECTING, SELECTIONS)
SCHEDULING = completed(SCHEDULING, SCHEDULES)

POLICIES = {
    **{name: KVPolicy(retention) for name, retention in RETAINING.items()},
    **{name: KVPolicy(selection=selection) for name, selection in SELECTING.items()},
    **{name: KVPolicy(schedule=schedule) for name, schedule in SCHEDULING.items()},
    **{dtype: KVPolicy(storage=KVStorage(dtype)) for dtype in ("int8", "int4")},
    "decoprune_int4": KVPolicy(RETAINING["decoprune"], storage=KVStorage("int4")),
}
VARIANTS = {
    "clean_pass": KVPolicy(SinkWindow(0, 21)),
    "full_reindexed": KVPolicy(DeCoPrune(gamma=-1.0)),
    "decoprune_threshold": KVPolicy(DeCoPrune(**{**DEFAULTS, "mode": "threshold", "gamma": 0.02})),
    "directed_uniform": KVPolicy(selection=DirectedForcing()),
    "directed_attention": KVPolicy(selection=DirectedForcing(1.0, head_table=TABLE)),
    "directed_diversity": KVPolicy(selection=DirectedForcing(0.0, head_table=TABLE)),
    "in_flight": KVPolicy(schedule=FlashForward(anchor_window=0)),
    "anchors": KVPolicy(schedule=FlashForward(stage_history=0)),
    "fp8": KVPolicy(storage=KVStorage("fp8")),
}

# What `dev/bench field` times in place of a row's own policy, on random weights in SPEED_LAYERS
# layers of SPEED_HEADS heads: they predict nothing, so DeCoPrune keeps a fixed share of each chunk;
# and head maps and tables belong to one model.
SPEED_LAYERS, SPEED_HEADS = 2, 2
SPEED_MAP = HeadMap("random", SPEED_HEADS, ((0,), (1,)))
SPEED_TABLE = HeadTable("random", "x0_drift", ((0.0, 1 / 3), (2 / 3, 1.0)))
SPEED_PRUNE = DeCoPrune(mode="target_keep", target_keep=0.094)  # as the demo world's takes keep
TIMED = {
    "decoprune": KVPolicy(SPEED_PRUNE),
    "random": KVPolicy(RandomPrune(SPEED_PRUNE)),
    "reverse": KVPolicy(ReversePrune(SPEED_PRUNE)),
    "temporal_difference": KVPolicy(TempDiffPrune(SPEED_PRUNE)),
    "decoprune_hs": KVPolicy(
        DeCoPruneHS(mode="target_keep", target_keep=0.094, head_map=SPEED_MAP)
    ),
    "forcing_kv": KVPolicy(ForcingKV(head_map=SPEED_MAP)),
    "decoprune_int4": KVPolicy(SPEED_PRUNE, storage=KVStorage("int4")),
    "directed": KVPolicy(selection=DirectedForcing(head_table=SPEED_TABLE)),
}


def known() -> dict[str, KVPolicy]:
    """All policies by name."""
    return {**POLICIES, **VARIANTS}


def chosen(names: list[str] | None, default: list[str]) -> list[str]:
    """The names that `--policy` gave, or the default ones; SystemExit for one that is unknown."""
    if unknown := [name for name in names or () if name not in known()]:
        raise SystemExit(f"--policy got {', '.join(unknown)}. Use some of: {', '.join(known())}.")
    return names or default


def add(files: list[str]):
    """Take over the POLICIES, and the TIMED if there are any, of each Python file.

    POLICIES: a KVPolicy for each new row, by name. TIMED: what is timed in its place, if its own
    policy cannot run on random weights. Both may build on everything in `keepsake.kv_policies`.
    """
    for file in files:
        path = Path(file)
        if not path.is_file():
            raise SystemExit(f"--add got {file}, which is no file. Give a Python file.")
        spec = importlib.util.spec_from_file_location(f"added_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        rows = getattr(module, "POLICIES", None)
        if not isinstance(rows, dict) or not rows:
            raise SystemExit(
                f"{file} has no POLICIES. Define a dict of them: a KVPolicy by the name of its row."
            )
        if twice := sorted(known().keys() & rows.keys()):
            raise SystemExit(f"{file} names {', '.join(twice)}, which is taken. Use other names.")
        POLICIES.update(rows)
        TIMED.update(getattr(module, "TIMED", {}))
