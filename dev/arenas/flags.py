"""Flags that say what makes the takes, for a bench's `common.start`: without ComfyUI."""

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
