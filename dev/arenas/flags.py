"""Flags of every arena's bench, for its `common.start`: without ComfyUI.

FLAGS      what makes the takes
RUN_FLAGS  their size, and what a dry run wants
"""

DEMO = "demo"  # the checkpoint that ships
SIZE, DEMO_SIZE = (480, 832), (64, 128)  # height, width in pixels

FLAGS = {
    "checkpoint": {
        "default": "",
        "help": "a file in models/diffusion_models, or a path; demo: ours",
    },
    "profile": {"default": "from file", "help": "as in AR Video Model Loader"},
    "weight_dtype": {"default": "default", "help": "as in AR Video Model Loader"},
    "lora": {"default": "none", "help": "as in AR Video Model Loader"},
    "text_encoder": {"default": "umt5_xxl_fp8_e4m3fn_scaled.safetensors", "help": "file"},
    "vae": {"default": "wan_2.1_vae.safetensors", "help": "file"},
    "policy": {
        "nargs": "*",
        "default": [],
        "metavar": "CHAIN",
        "help": "policy nodes joined by +, with widgets: sinkwindow:window_frames=18,sink_frames=6"
        "+kvstorage:dtype=int8; each CHAIN is a row of the table. profile: none connected",
    },
    "workflow": {
        "default": "",
        "help": "graph in API format with one AR Video Sampler, in place of the flags above; its "
        "policy counts where no --policy is given",
    },
    "host": {
        "default": "",
        "help": "ComfyUI's own flags in one string, behind =: --host='--lowvram --fp32-vae'",
    },
}
RUN_FLAGS = {
    "size": {"default": "", "help": "height x width in pixels; 480x832 (of demo 64x128)"},
    "dry_run": {"action": "store_true", "help": "bytes and hours, without weights"},
    "tflops": {"type": float, "default": 400.0, "help": "speed that a dry run's hours assume"},
}


def read_size(args) -> tuple[int, int]:
    """Height and width in pixels. ValueError, in a sentence, for what is none."""
    if not args.size:
        return DEMO_SIZE if args.checkpoint == DEMO else SIZE
    try:
        sides = [int(side) for side in args.size.split("x")]
    except ValueError:
        sides = []
    if len(sides) != 2 or any(side < 16 or side % 16 for side in sides):
        raise ValueError(
            f"--size is '{args.size}'. Give height x width in pixels, multiples of 16: 480x832."
        )
    return tuple(sides)
