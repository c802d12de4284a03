"""The nodes of retentions and selections, one file a node. Each fills one slot of the policy that
comes in and hands it on.
"""

from . import decoprune, directed_forcing, full, pruning_control, sink_window

FILES = (full, sink_window, decoprune, pruning_control, directed_forcing)  # in the menu's order
