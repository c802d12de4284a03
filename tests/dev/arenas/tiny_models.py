"""DINOv2, OWL-ViT and SAM2 with random weights, small enough for a test, in folders as
transformers saves them.
"""

import json
import string
from pathlib import Path

import torch
import transformers as hf


def dino(folder: Path) -> Path:
    config = hf.Dinov2Config(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=7
    )
    _save(folder, hf.Dinov2Model(config))
    hf.BitImageProcessor(size={"shortest_edge": 32}, crop_size=28).save_pretrained(folder)
    return folder


def owl(folder: Path) -> Path:
    layers = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    layers["intermediate_size"] = 16
    text = {**layers, "vocab_size": 64, "max_position_embeddings": 16}
    text |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    vision = {**layers, "image_size": 32, "patch_size": 8}
    config = hf.OwlViTConfig(text_config=text, vision_config=vision, projection_dim=16)
    _save(folder, hf.OwlViTForObjectDetection(config))
    hf.OwlViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    words = ["!", "<|startoftext|>", "<|endoftext|>", *string.ascii_lowercase]
    words += [f"{letter}</w>" for letter in string.ascii_lowercase]
    files = {"vocab.json": json.dumps({word: n for n, word in enumerate(words)})}
    files["merges.txt"] = "#version: 0.2\n"
    files["tokenizer_config.json"] = json.dumps(
        {"tokenizer_class": "CLIPTokenizer", "model_max_length": 16}
    )
    for name, content in files.items():
        (folder / name).write_text(content)
    return folder


def sam(folder: Path) -> Path:
    backbone = hf.Sam2HieraDetConfig(
        hidden_size=8,
        image_size=[64, 64],
        blocks_per_stage=[1, 1, 2, 1],
        embed_dim_per_stage=[8, 16, 32, 64],
        num_attention_heads_per_stage=[1, 2, 4, 8],
        window_size_per_stage=[4, 4, 4, 4],
        global_attention_blocks=[3],
    )
    vision = hf.Sam2VisionConfig(
        backbone_config=backbone,
        backbone_channel_list=[64, 32, 16, 8],
        backbone_feature_sizes=[[16, 16], [8, 8], [4, 4]],
        fpn_hidden_size=32,
    )
    config = hf.Sam2Config(
        vision_config=vision,
        prompt_encoder_config={"hidden_size": 32, "image_size": 64},
        mask_decoder_config={
            "hidden_size": 32,
            "mlp_dim": 32,
            "num_attention_heads": 2,
            "iou_head_hidden_dim": 32,
        },
    )
    _save(folder, hf.Sam2Model(config))
    images = hf.Sam2ImageProcessor(size={"height": 64, "width": 64})
    hf.Sam2Processor(images).save_pretrained(folder)
    return folder


def _save(folder: Path, model):
    torch.manual_seed(0)
    model.post_init()
    model.save_pretrained(folder)
