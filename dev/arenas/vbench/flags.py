"""The flags of `dev/bench vbench`, for its `common.start`: without ComfyUI."""

from ..flags import FLAGS as MAKER_FLAGS
from ..flags import RUN_FLAGS

FLAGS = {
    "prompts": {"default": "", "help": "VBench_full_info.json, or text with a prompt on each line"},
    "told": {"default": "", "help": "text: what the model is told, a line for each prompt"},
    "first": {"type": int, "default": 0, "help": "as many prompts of the list; 0: all"},
    "samples": {"type": int, "default": 0, "help": "videos of a prompt; 0: as VBench asks, or 1"},
    "dimension": {"nargs": "+", "default": [], "help": "of VBench, and their prompts alone; all"},
    "frames": {"default": "21", "help": "latent frames, several by commas; 21: 5 seconds"},
    "seed": {"type": int, "default": 0, "help": "of the list's first video"},
    **MAKER_FLAGS,
    **RUN_FLAGS,
    "out": {"default": "output/vbench", "help": "folder for the videos; one with videos goes on"},
    "table": {"action": "store_true", "help": "only read what VBench wrote for videos in --out"},
}
