"""What to keep of the past: KV cache, token index, RoPE moves, and one file per method. Needs torch and nothing else."""
from .base import Attention, Chunk, Geometry, KVPolicy, ReadAll, Retention, RetentionRun, Schedule, Selection, SelectionRun, Storage
from .cache import Bank, KVCache
from .clean_pass import CleanPass
from .full import FullKV
from .sink_window import SinkWindow

RETENTIONS = (FullKV, SinkWindow)        # what tests and benches iterate over
