"""Models and their AR profile."""

import folder_paths
from comfy_api.latest import io

from ..host.model.backbone import require_wan
from ..host.model.checkpoint import WEIGHT_DTYPES, load_ar_model
from ..host.model.profile_choice import check_choice
from ..host.model.profiles import ARProfile, with_profile
from ..host.model.published import PROFILES
from ..host.take.patch import patch
from ..kv_policies.retention.sink_window import SINK_ROPE
from .sockets import CATEGORY

FROM_FILE, CUSTOM, NO_LORA = "from file", "custom", "none"


class ARVideoModelLoader(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakeARVideoModelLoader",
            display_name="AR Video Model Loader",
            category=CATEGORY,
            has_intermediate_output=True,
            description="Loads an autoregressive Wan video model and gives it the AR profile it "
            "was trained with.",
            search_aliases=[
                "Self-Forcing",
                "Causal-Forcing",
                "LongLive",
                "Wan",
                "autoregressive",
                "load diffusion model",
            ],
            inputs=[
                io.Combo.Input(
                    "model_name",
                    options=folder_paths.get_filename_list("diffusion_models"),
                    tooltip="A file in models/diffusion_models: safetensors or .pt, in its "
                    "authors' layout; of shards any one.",
                ),
                io.Combo.Input(
                    "profile",
                    options=[FROM_FILE, *PROFILES],
                    default=FROM_FILE,
                    tooltip="How the checkpoint was trained: chunk size, steps, shift, window, "
                    "sink. 'from file' reads it from the file's header or name, and says so when "
                    "neither has it.",
                ),
                io.Combo.Input(
                    "weight_dtype",
                    options=list(WEIGHT_DTYPES),
                    default="default",
                    tooltip="Precision of the weights in memory; default lets ComfyUI decide.",
                ),
                io.Combo.Input(
                    "lora_name",
                    options=[NO_LORA, *folder_paths.get_filename_list("loras")],
                    default=NO_LORA,
                    optional=True,
                    tooltip="A LoRA that is part of the checkpoint (LongLive's lora.pt), in "
                    "models/loras. Others go behind this node.",
                ),
                io.Float.Input(
                    "lora_alpha",
                    default=0.0,
                    min=0.0,
                    max=65536.0,
                    step=0.5,
                    optional=True,
                    tooltip="Alpha that the LoRA was trained with, where its files do not say it. "
                    "0 takes it from the LoRA or the adapter_config.json beside it.",
                ),
            ],
            outputs=[io.Model.Output(display_name="model")],
        )

    @classmethod
    def execute(cls, model_name, profile, weight_dtype, lora_name=NO_LORA, lora_alpha=0.0):
        path = folder_paths.get_full_path_or_raise("diffusion_models", model_name)
        lora_path = None
        if lora_name != NO_LORA:
            lora_path = folder_paths.get_full_path_or_raise("loras", lora_name)
        lines = []
        model = load_ar_model(
            path,
            PROFILES.get(profile),
            weight_dtype,
            model_name,
            lora_path,
            tell=lines.append,
            lora_alpha=lora_alpha,
        )
        return io.NodeOutput(patch(model), ui={"text": lines})


class ARProfileNode(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakeARProfile",
            display_name="AR Profile",
            category=CATEGORY,
            has_intermediate_output=True,
            description="Prepares any Wan MODEL (GGUF, fp8, with LoRAs) for AR sampling and says "
            "how it was trained to be rolled out.",
            search_aliases=["AR settings", "chunk size", "num_frame_per_block", "causal", "GGUF"],
            inputs=[
                io.Model.Input("model"),
                io.Int.Input(
                    "chunk_frames",
                    default=3,
                    min=1,
                    max=64,
                    tooltip="Latent frames denoised together. Must match the training: 3 "
                    "chunk-wise, 1 frame-wise.",
                ),
                io.Int.Input(
                    "steps", default=4, min=1, max=100, tooltip="Denoising steps of a chunk."
                ),
                io.Float.Input(
                    "shift",
                    default=5.0,
                    min=0.0,
                    max=100.0,
                    step=0.1,
                    tooltip="Shift of the noise schedule; 0 leaves the model's own.",
                ),
                io.Int.Input(
                    "window_frames",
                    default=21,
                    min=0,
                    max=4096,
                    tooltip="Latent frames in the cache when no KV policy is connected, the chunk "
                    "being made included. 0 keeps all.",
                ),
                io.Int.Input(
                    "sink_frames",
                    default=0,
                    min=0,
                    max=1024,
                    tooltip="First latent frames that stay, when no KV policy is connected.",
                ),
                io.Combo.Input(
                    "sink_rope",
                    options=list(SINK_ROPE),
                    default="absolute",
                    tooltip="Where the sink stands in time: its true place, or just before the "
                    "window.",
                ),
                io.Int.Input(
                    "temporal_compression",
                    default=4,
                    min=1,
                    max=16,
                    tooltip="Pixel frames that the model's VAE makes of one latent frame, after "
                    "the first. 4 for Wan.",
                ),
                io.Combo.Input(
                    "profile",
                    options=[CUSTOM, *PROFILES],
                    default=CUSTOM,
                    optional=True,
                    tooltip="The profile of a published checkpoint, in place of the numbers "
                    "above; 'custom' takes the numbers.",
                ),
                io.Int.Input(
                    "first_chunk_steps",
                    default=0,
                    min=0,
                    max=100,
                    optional=True,
                    tooltip="Steps of the first new chunk, for models that make it in more "
                    "(Causal-Forcing++: 4). 0: as all others.",
                ),
            ],
            outputs=[io.Model.Output(display_name="model")],
        )

    @classmethod
    def execute(
        cls,
        model,
        chunk_frames,
        steps,
        shift,
        window_frames,
        sink_frames,
        sink_rope,
        temporal_compression,
        profile=CUSTOM,
        first_chunk_steps=0,
    ):
        numbers = ARProfile(
            name=CUSTOM,
            chunk_frames=chunk_frames,
            steps=steps,
            shift=shift,
            window_frames=window_frames,
            sink_frames=sink_frames,
            sink_rope=sink_rope,
            temporal_compression=temporal_compression,
            first_chunk_steps=first_chunk_steps,
        )
        chosen = PROFILES.get(profile, numbers)
        note = check_choice(require_wan(model), chosen)
        words = [f"'{chosen.name}': {chosen.describe()}.", chosen.note, note]
        return io.NodeOutput(
            with_profile(patch(model), chosen), ui={"text": [" ".join(filter(None, words))]}
        )
