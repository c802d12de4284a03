"""Scales of quantised files: those that ComfyUI applies, and those that nobody would."""

import json

from torch import Tensor

# The last part of names under which quantisers keep a layer's scales: ComfyUI and
# compressed-tensors (weight_scale), ComfyUI's older fp8 files (scale_weight), DeepSeek's blocks
# (weight_scale_inv), bitsandbytes in 8 bits (SCB) and in 4 (absmax, quant_map), quanto (_scale),
# GPTQ and AWQ (scales).
SCALES = {
    "weight_scale",
    "weight_scale_2",
    "weight_scale_inv",
    "scale_weight",
    "scale",
    "_scale",
    "scales",
    "SCB",
    "absmax",
    "nested_absmax",
    "quant_map",
}
FP8_MARKER = "scaled_fp8"  # key of older fp8 files of ComfyUI, whose scales go by other names
HEADER = "_quantization_metadata"  # in a safetensors header: what `comfy_quant` keys say otherwise
# A tensor of JSON beside a layer: the attention that the file prefers there. Not a weight.
ATTENTION = ".comfy_attention.config"
PARAMETERS = (".weight", ".bias", "modulation")  # how names of a layer's own numbers end


def layer_of(key: str) -> str:
    """The layer that a scale is for: bitsandbytes and quanto put it behind the weight's name."""
    return key.rpartition(".")[0].removesuffix(".weight")


def is_scale(key: str) -> bool:
    return key.rpartition(".")[2] in SCALES


def host_names(weights: dict[str, Tensor], metadata: dict[str, str]) -> set[str]:
    """The keys of a file as the host knows them after its own renaming of older fp8 files."""
    if FP8_MARKER not in weights or HEADER in metadata:
        return set(weights)
    renamed = {"scale_weight": "weight_scale", "scale_input": "input_scale"}
    names = set()
    for key in weights.keys() - {FP8_MARKER}:
        layer, dot, last = key.rpartition(".")
        names.add(f"{layer}{dot}{renamed.get(last, last)}")
    return names


def quantised_layers(weights: dict[str, Tensor], metadata: dict[str, str]) -> set[str]:
    """Layers that the file marks as quantised in a way that ComfyUI reads."""
    marked = {key.removesuffix(".comfy_quant") for key in weights if key.endswith(".comfy_quant")}
    if HEADER in metadata:
        return marked | json.loads(metadata[HEADER])["layers"].keys()
    if FP8_MARKER in weights:
        marked |= {layer_of(key) for key in weights if key.endswith(".scale_weight")}
    return marked


def require_applied_scales(weights: dict[str, Tensor], metadata: dict[str, str], name: str):
    """ValueError where a file has scales that ComfyUI would leave aside, or weights of
    another kind than floating-point numbers without scales: it would load as a whole model and make
    a broken video.
    """
    marked = quantised_layers(weights, metadata)
    idle = sorted(
        key
        for key in host_names(weights, metadata)
        if is_scale(key)
        and not (layer_of(key) in marked and key.endswith((".weight_scale", ".weight_scale_2")))
    )
    if idle:
        raise not_applied(idle, name)
    no_weights = sorted(
        key
        for key, value in weights.items()
        if key.endswith(PARAMETERS)
        and not value.is_floating_point()
        and key.removesuffix(".weight") not in marked
    )
    if no_weights:
        raise ValueError(
            f"'{name}' holds {len(no_weights)} weight(s) as whole numbers or of another kind, "
            f"'{no_weights[0]}' first, and not the scales that they belong to. {ADVICE}"
        )


ADVICE = (
    "Choose a file that was quantised for ComfyUI (with 'comfy_quant' or 'scaled_fp8' in it), or "
    "one in bf16 and an fp8 weight_dtype."
)


def not_applied(scales: list[str], name: str) -> ValueError:
    return ValueError(
        f"'{name}' holds {len(scales)} scale(s) of quantised weights that ComfyUI does not apply, "
        f"'{scales[0]}' first, and would give a broken video. {ADVICE}"
    )


def merged_header(headers: list[dict[str, str]], rename) -> dict[str, str]:
    """One header for the files of a checkpoint, with the quantised layers of all, under the names
    that `rename` gives to the layers' weights.
    """
    merged: dict[str, str] = {}
    layers: dict[str, dict] = {}
    for header in headers:
        merged.update(header)
        for layer, config in json.loads(header.get(HEADER, "{}")).get("layers", {}).items():
            layers[rename(f"{layer}.weight").removesuffix(".weight")] = config
    if HEADER in merged:
        merged[HEADER] = json.dumps({**json.loads(merged[HEADER]), "layers": layers})
    return merged
