"""CMBench's takes with any checkpoint and policy, from the benchmark's data: mp4, JSON and a table.

What a continuation remembers of a context of a minute (DeCoPrune, arXiv 2609.39096; the data are
Aoraku/CMBench on Hugging Face). The way of the authors' public code: contexts at 16 frames a second
and 480x832, the continuation's prompt throughout, a camera that stands still, 16 new latent frames,
seeds 2, 3 and 4, LingBot-World v2 by their schedule. dev/ARENAS.md says what else of the paper's
rows is theirs, and on what hardware they can be made.

    dev/bench cmbench --data CMBench --checkpoint lingbot-world-v2-14b-causal-fast/....safetensors
        --policy full decoprune:mode=threshold,gamma=0.1 --dry-run

Each take is written as it is made; the same command goes on where it stopped. prune_ratio is theirs
(history that the new chunks could not read, over layers and heads, as a share of all), ci95 half
the width of the bootstrap interval over tasks, fps pixel frames of the continuation by its seconds,
encoding, context and decoding left out. Noise is ComfyUI's: a seed is another take than theirs.
"""

import _common as common
from arenas.cmbench.flags import FLAGS

args = common.start(
    __doc__,
    host_flags=lambda args: args.host.split(),
    quick="the first two tasks, with the first seed",
    cpu=False,
    **FLAGS,
)
from arenas.cmbench.command import run

if __name__ == "__main__":
    common.make_takes("cmbench", run, args)
