"""The models of the measures, from folders on this machine; nothing is ever downloaded."""

import functools
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

BATCH = 8  # pictures in a forward


class Loaded(NamedTuple):
    """A model with what prepares its inputs."""

    model: torch.nn.Module
    processor: object

    def __call__(self, inputs, **options):
        """The model's outputs, of inputs as the processor made them."""
        with torch.inference_mode():
            return self.model(**inputs.to(self.model.device), **options)


DINO, OWL, SAM = "DINOv2", "OWL-ViT", "SAM2"


def dino(folder: Path, device: str) -> Loaded:
    """A DINOv2."""
    return _on(device, load(DINO, folder))


def detector(folder: Path, device: str) -> Loaded:
    """An OWL-ViT."""
    return _on(device, load(OWL, folder))


def masks(folder: Path, device: str) -> Loaded:
    """A SAM2, which came to transformers with 4.56."""
    return _on(device, load(SAM, folder))


def _on(device: str, loaded: Loaded) -> Loaded:
    loaded.model.to(device)
    return loaded


def features(images: list[torch.Tensor], dino: Loaded) -> torch.Tensor:
    """DINOv2's pooled output `[N, channels]` of uint8 images `[H, W, 3]`, of length 1."""
    rows = []
    for start in range(0, len(images), BATCH):
        batch = [np.asarray(image) for image in images[start : start + BATCH]]
        inputs = dino.processor(
            images=batch, return_tensors="pt", input_data_format="channels_last"
        )
        pooled = dino(inputs).pooler_output
        rows.append(torch.nn.functional.normalize(pooled.float(), dim=-1).cpu())
    return torch.cat(rows)


# What: the kinds that a folder's config.json may name, transformers' class, its processor's.
KINDS = {
    DINO: (("dinov2", "dinov2_with_registers"), "AutoModel", "AutoImageProcessor"),
    OWL: (("owlvit", "owlv2"), "AutoModelForZeroShotObjectDetection", "AutoProcessor"),
    SAM: (("sam2", "sam2_video"), "Sam2Model", "Sam2Processor"),
}


@functools.cache
def load(what: str, folder: Path) -> Loaded:
    """In main memory, once. ValueError, in a sentence, for a folder that holds no such model."""
    kinds, model, processor = KINDS[what]
    config = Path(folder) / "config.json"
    if not config.is_file():
        raise ValueError(
            f"The folder of {what}, {folder}, has no config.json: it should hold a model as "
            "transformers saves it (config.json, preprocessor_config.json, model.safetensors)."
        )
    try:
        kind = json.loads(config.read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(f"{config} is no model's config ({error}). Download it again.") from None
    if kind not in kinds:
        raise ValueError(f"The folder of {what}, {folder}, holds '{kind}', not {kinds[0]}.")
    import transformers

    if not hasattr(transformers, model):
        raise ValueError(
            f"This environment's transformers is {transformers.__version__}, and knows {what} "
            "from 4.56 on. Update it, or leave out the measure that needs it."
        )
    local = {"pretrained_model_name_or_path": folder, "local_files_only": True}
    try:
        return Loaded(
            getattr(transformers, model).from_pretrained(**local).eval(),
            getattr(transformers, processor).from_pretrained(**local),
        )
    except Exception as error:  # transformers has one of its own for each file that may be missing
        raise ValueError(
            f"The folder of {what}, {folder}, cannot be loaded ({error}). Download it whole."
        ) from None
