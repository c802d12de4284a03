"""Videos of VBench's or your own prompts with any checkpoint and policy, and VBench's scores.

    dev/bench vbench --prompts VBench_full_info.json --checkpoint self_forcing_dmd.safetensors
        --policy full sinkwindow --frames 21,120
    dev/bench vbench --table

The first line makes the videos under VBench's names, goes on where it stopped, and prints what to
run in VBench's own environment (a clone of its repository; it does not go with ComfyUI's packages).
--told names a file with, line by line, what the model is told in place of VBench's short prompts:
VBench's prompts/augmented_prompts fit. A list as text (MovieGen's, a prompt on each line) is scored
in VBench's mode for one's own videos, in the six dimensions that it has for them; papers take its
first 128 (--first 128). Videos of more than 10 seconds go to VBench-Long.

The second line reads VBench's results back (each folder's scores/): its score of each dimension,
its totals where all their dimensions are there, and our fps and memory beside. ci95, in the JSON,
is half the width of the bootstrap interval over prompts. Each video has a seed of its own, which
the videos of all policies share; noise is ComfyUI's. dev/ARENAS.md says what papers' rows want.
"""

import _common as common
from arenas.vbench.flags import FLAGS

args = common.start(
    __doc__,
    host_flags=lambda args: args.host.split(),
    quick="the first two prompts, one video of each",
    cpu=False,
    **FLAGS,
)
from arenas.vbench.command import run

if __name__ == "__main__":
    common.make_takes("vbench", run, args)
