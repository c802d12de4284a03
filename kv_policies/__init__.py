"""What to keep of the past: KV cache, token index, RoPE moves, and one file per method. Needs torch
and nothing else.
"""

from .cache.bank import Bank
from .cache.cache import KVCache
from .cache.pages import BankPages, Pages
from .cache.view import View
from .policy import KVPolicy
from .retention.decoprune import DeCoPrune
from .retention.decoprune_hs import DeCoPruneHS
from .retention.deep_forcing import DeepForcing
from .retention.deep_sink import DeepSink
from .retention.dummy_forcing import DummyForcing
from .retention.ema_sink import EmaSink
from .retention.forcing_kv import ForcingKV
from .retention.full import FullKV
from .retention.head_map import HeadMap
from .retention.infinity_rope import InfinityRope
from .retention.memrope import MemRope
from .retention.pruning_controls import RandomPrune, ReversePrune, TempDiffPrune
from .retention.retention import Probe, Retention, RetentionRun
from .retention.rolling_sink import RollingSink
from .retention.scores import ScoreHistogram
from .retention.sink_window import SinkWindow
from .retention.temp_diff import TempDiff
from .retention.worldkv import WorldKV
from .schedule.clean_pass import CleanPass
from .schedule.context_recompute import ContextRecompute
from .schedule.features import MODULES, Features
from .schedule.flash_forward import FlashForward
from .schedule.hierarchical import Hierarchical
from .schedule.rolling_forcing import RollingForcing
from .schedule.schedule import Schedule, Stage
from .schedule.taylorseer import TaylorSeer
from .selection.directed_forcing import DirectedForcing
from .selection.head_table import HeadTable
from .selection.monarch_rt import MonarchRT
from .selection.selection import Attention, ReadAll, Selection, SelectionRun
from .state import KVMemoryError, State
from .storage.kv_storage import KVStorage
from .storage.storage import Storage
from .take import (
    FORECAST,
    HISTORY,
    HOLD,
    SWITCHES,
    ActionPlan,
    BankPlan,
    Chunk,
    Cue,
    Forward,
    Geometry,
    Read,
    Span,
    Switch,
    Take,
)

RETENTIONS = (  # what tests iterate over
    FullKV,
    SinkWindow,
    DeCoPrune,
    DeCoPruneHS,
    DummyForcing,
    ForcingKV,
    InfinityRope,
    DeepForcing,
    DeepSink,
    TempDiff,
    RollingSink,
    MemRope,
    EmaSink,
    WorldKV,
    RandomPrune,
    ReversePrune,
    TempDiffPrune,
)
SELECTIONS = (
    ReadAll,
    DirectedForcing,
    MonarchRT,
)
SCHEDULES = (
    CleanPass,
    FlashForward,
    Hierarchical,
    RollingForcing,
    ContextRecompute,
    TaylorSeer,
)
STORAGES = (Storage, KVStorage)
