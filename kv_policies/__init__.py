"""What to keep of the past: KV cache, token index, RoPE moves, and one file per method. Needs torch and nothing else."""
from .bank import Bank
from .cache import KVCache
from .clean_pass import CleanPass
from .context_recompute import ContextRecompute
from .decoprune import DeCoPrune
from .decoprune_hs import DeCoPruneHS
from .directed_forcing import DirectedForcing
from .flash_forward import FlashForward
from .full import FullKV
from .head_map import HeadMap
from .head_table import HeadTable
from .hierarchical import Hierarchical
from .pages import Pages
from .policy import KVPolicy
from .pruning_controls import RandomPrune, ReversePrune, TempDiffPrune
from .retention import BankPlan, Probe, Retention, RetentionRun
from .rolling_forcing import RollingForcing
from .schedule import Schedule
from .scores import ScoreHistogram
from .selection import Attention, ReadAll, Selection, SelectionRun
from .sink_window import SinkWindow
from .state import KVMemoryError, State
from .storage import KVStorage, Storage
from .take import HISTORY, SWITCHES, Chunk, Forward, Geometry, Switch, Take

RETENTIONS = (                   # what tests iterate over
    FullKV,
    SinkWindow,
    DeCoPrune,
    DeCoPruneHS,
    RandomPrune,
    ReversePrune,
    TempDiffPrune,
)
