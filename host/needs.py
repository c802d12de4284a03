"""Each name of ComfyUI that Keepsake uses, looked up when the pack loads: a version that lacks one
is refused in a sentence that names it.
"""

import importlib
import sys
from collections.abc import Mapping
from operator import attrgetter

from . import TESTED_HOSTS

# By module: the names that host/, demo/ and nodes/ import from it or read of it.
NAMES = {
    "comfy.cli_args": "args.disable_metadata",
    "comfy.conds": "CONDRegular is_equal",
    "comfy.latent_formats": "Wan21",
    "comfy.ldm.flux.math": "apply_rope1",
    "comfy.ldm.modules.attention": "optimized_attention",
    "comfy.ldm.wan.ar_model": "CausalWanModel CausalWanSelfAttention.forward",
    "comfy.ldm.wan.model": (
        "MLPProj WanAttentionBlock WanModel WanSelfAttention.forward WanT2VCrossAttention.forward "
        "repeat_e"
    ),
    "comfy.ldm.wan.vae": "WanVAE count_cache_layers",
    "comfy.model_base": "ModelType.FLOW WAN21",
    "comfy.model_management": (
        "cast_to get_free_memory get_total_memory in_training intermediate_device load_models_gpu "
        "synchronize throw_exception_if_processing_interrupted"
    ),
    "comfy.model_patcher": "create_model_options_clone",
    "comfy.model_sampling": "CONST ModelSamplingDiscreteFlow",
    "comfy.ops": "disable_weight_init",
    "comfy.patcher_extension": (
        "CallbacksMP.ON_CLEANUP CallbacksMP.ON_CLONE CallbacksMP.ON_MATCH_MULTIGPU_CLONES "
        "WrappersMP.APPLY_MODEL WrappersMP.DIFFUSION_MODEL WrappersMP.OUTER_SAMPLE "
        "WrappersMP.PREPARE_SAMPLING add_wrapper_with_key"
    ),
    "comfy.sample": "fix_empty_latent_channels prepare_noise",
    "comfy.sampler_helpers": "cleanup_additional_models prepare_model_patcher prepare_sampling",
    "comfy.samplers": (
        "CFGGuider.predict_noise Sampler calc_cond_batch calculate_sigmas cast_to_load_options "
        "process_conds"
    ),
    "comfy.sd": "CLIP VAE load_diffusion_model_state_dict load_lora_for_models",
    "comfy.supported_models": "WAN21_T2V models.insert models.remove",
    "comfy.supported_models_base": "ClipTarget",
    "comfy.utils": "PROGRESS_BAR_ENABLED ProgressBar get_attr load_torch_file",
    "comfy.weight_adapter": "LoRAAdapter",
    "comfy_api.latest": (
        "ComfyExtension io.Boolean.Input io.Clip.Input io.Clip.Output io.Combo.Input io.ComfyNode "
        "io.Conditioning.Input io.Conditioning.Output io.Custom io.Float.Input io.Float.Output "
        "io.FolderType.output io.FolderType.temp io.Hidden.dynprompt io.Hidden.extra_pnginfo "
        "io.Hidden.prompt io.Image.Input io.Image.Output io.Int.Input io.Latent.Input "
        "io.Latent.Output io.Model.Input io.Model.Output io.NodeOutput io.Sampler.Output "
        "io.Schema io.Sigmas.Input io.String.Input io.String.Output io.Vae.Input io.Vae.Output "
        "ui.PreviewImage ui.PreviewVideo ui.SavedResult"
    ),
    "comfy_execution.progress": "get_progress_state",
    "comfy_execution.utils": "get_executing_context",
    "folder_paths": (
        "filename_list_cache.pop folder_names_and_paths.get get_filename_list get_full_path "
        "get_full_path_or_raise get_input_directory get_output_directory get_save_image_path "
        "get_temp_directory models_dir"
    ),
    "latent_preview": "prepare_callback",
    "node_helpers": "conditioning_set_values",
    "server": "PromptServer.instance",
}

# By module: the methods that Keepsake calls on objects of the host, which no import shows.
METHODS = {
    "comfy.ldm.wan.model": "WanModel.forward_orig WanModel.rope_encode",
    "comfy.model_base": (
        "BaseModel.get_dtype_inference BaseModel.memory_required BaseModel.process_latent_in "
        "BaseModel.process_latent_out"
    ),
    "comfy.model_patcher": (
        "ModelPatcher.add_callback_with_key ModelPatcher.add_object_patch "
        "ModelPatcher.add_wrapper_with_key ModelPatcher.clone "
        "ModelPatcher.get_additional_models_with_key ModelPatcher.get_callbacks "
        "ModelPatcher.get_model_object ModelPatcher.loaded_size ModelPatcher.model_dtype "
        "ModelPatcher.model_size ModelPatcher.pre_run"
    ),
    "comfy.model_sampling": (
        "CONST.inverse_noise_scaling CONST.noise_scaling ModelSamplingDiscreteFlow.set_parameters "
        "ModelSamplingDiscreteFlow.timestep"
    ),
    "comfy.samplers": "CFGGuider.inner_set_conds CFGGuider.sample CFGGuider.set_cfg",
    "comfy.sd": "CLIP.encode_from_tokens_scheduled CLIP.tokenize VAE.encode",
}

RUNNING = "server"  # a module that only a running ComfyUI has


def missing_names(tables: tuple[Mapping[str, str], ...] = (NAMES, METHODS)) -> list[str]:
    """What this ComfyUI does not have, as `module.name`, or a module that cannot be imported."""
    missing = []
    for module, names in (entry for table in tables for entry in table.items()):
        if module == RUNNING and module not in sys.modules:
            continue
        try:
            found = importlib.import_module(module)
        except ImportError as error:
            missing.append(f"{module} ({error})")
            continue
        for name in names.split():
            try:
                attrgetter(name)(found)
            except AttributeError:
                missing.append(f"{module}.{name}")
    return missing


def require_names():
    """ImportError, in a sentence, on a ComfyUI that lacks a name that Keepsake uses."""
    if missing := missing_names():
        raise ImportError(
            f"Keepsake needs {', '.join(missing)}, which this ComfyUI does not have. It is tested "
            f"with ComfyUI {TESTED_HOSTS}; use one of these or a newer Keepsake."
        )
