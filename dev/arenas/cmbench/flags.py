"""The flags of `dev/bench cmbench`, for its `common.start`: without ComfyUI."""

from ..flags import FLAGS as MAKER_FLAGS
from ..flags import RUN_FLAGS

FLAGS = {
    "data": {"default": "", "help": "the folder with metadata.jsonl and videos/"},
    "tasks": {"default": "*", "help": "names of tasks, as a pattern: 'syn_00*'"},
    "seeds": {"default": "2,3,4"},
    "frames": {"type": int, "default": 16, "help": "new latent frames"},
    "camera": {
        "default": "",
        "help": "of the continuation: a path of World Camera, or keys; still",
    },
    **MAKER_FLAGS,
    "out": {"default": "output/cmbench", "help": "folder for the takes; one with takes goes on"},
    **RUN_FLAGS,
    "dry_run": {"action": "store_true", "help": "prune ratio, bytes and hours, without weights"},
    "export": {"default": "", "help": "folder for the inputs of the authors' evaluator"},
    "dino": {"default": "", "help": "folder of a DINOv2, for the direct box"},
    "owl": {"default": "", "help": "folder of an OWL-ViT; with --sam and --dino, for our measure"},
    "sam": {"default": "", "help": "folder of a SAM2"},
}
