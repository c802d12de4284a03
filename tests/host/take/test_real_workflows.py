"""The workflows for published checkpoints, through a real server: with tiny random weights under
the very names of the files.
"""

import json
import shutil
from pathlib import Path

import comfy.ops
import pytest
import torch
from comfy.ldm.wan.model import WanModel
from safetensors.torch import save_file
from support import tiny, tiny_worlds
from support.pack import load_server

ROOT = Path(__file__).parents[3]
dev = load_server()
SIDE, CLIP_PICTURES = 64, 9
# In the text encoder's place, whose smallest file that the host knows has billions of weights: the
# demo world's words, as wide as umt5-xxl.
TINY_TEXT_ENCODER = """
import sys
import torch


class TinyTextEncoder:
    RETURN_TYPES = ("CLIP",)
    FUNCTION = "load"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    def load(self):
        (demo,) = (
            module for name, module in sys.modules.items() if name.endswith("keepsake.demo.load")
        )

        class Encoder(demo.TextEncoder):
            def encode_token_weights(self, tokens):
                words, pooled = super().encode_token_weights(tokens)
                return torch.nn.functional.pad(words, (0, 4096 - words.shape[-1])), pooled

        target = demo.comfy.supported_models_base.ClipTarget(demo.Tokenizer, Encoder)
        return (demo.comfy.sd.CLIP(target, model_options=demo.ON_THE_CPU),)


NODE_CLASS_MAPPINGS = {"TinyTextEncoder": TinyTextEncoder}
"""
# In CLIP vision's place, which has 630 million weights: what it would hand on, as large as it is.
TINY_CLIP_VISION = """
import torch


class Seen:
    def __init__(self, image):
        noise = torch.randn(1, 257, 1280, generator=torch.Generator().manual_seed(1))
        self.penultimate_hidden_states = noise * image.mean()


class Vision:
    def encode_image(self, image, crop=True):
        return Seen(image)


class TinyClipVision:
    RETURN_TYPES = ("CLIP_VISION",)
    FUNCTION = "load"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    def load(self):
        return (Vision(),)


NODE_CLASS_MAPPINGS = {"TinyClipVision": TinyClipVision}
"""
STAND_INS = {"CLIPLoader": "TinyTextEncoder", "CLIPVisionLoader": "TinyClipVision"}
LONG = ("EmptyARVideoLatent", "WanImageToVideo")  # nodes that have the take's length


def weights() -> dict[str, torch.Tensor]:
    """Wan 1.3B's width, by which the loader tells its files, with a single narrow block."""
    model = WanModel(
        in_dim=16,
        out_dim=16,
        dim=1536,
        ffn_dim=64,
        freq_dim=256,
        text_dim=4096,
        num_heads=12,
        num_layers=1,
        operations=comfy.ops.disable_weight_init,
        device="cpu",
        dtype=torch.bfloat16,
    )
    random = torch.Generator().manual_seed(1)
    return {
        name: torch.ones_like(p)
        if "norm" in name and name.endswith("weight")
        else torch.randn(p.shape, generator=random).to(p)
        * (p[0].numel() if p.ndim > 1 else 16) ** -0.5
        for name, p in model.named_parameters()
    }


def write_models(models: Path):
    for kind in ("diffusion_models", "loras", "vae"):
        (models / kind).mkdir(parents=True, exist_ok=True)
    state, q = weights(), "blocks.0.self_attn.q.lora_{}.weight"
    save_file(state, models / "diffusion_models/causal_forcing-framewise.safetensors")
    torch.save(
        {"generator": {f"model.{name}": value for name, value in state.items()}},
        models / "diffusion_models/longlive_base.pt",
    )
    torch.save(
        {
            "generator_lora": {
                q.format("A"): torch.zeros(4, 1536),
                q.format("B"): torch.zeros(1536, 4),
            }
        },
        models / "loras/lora.pt",
    )
    world = tiny_worlds.matrix_game_state(dim=1536, layers=1, action_layers=1, heads=1)
    save_file(
        {f"model.{name}": value.bfloat16() for name, value in world.items()},
        models / "diffusion_models/base_distill.safetensors",
    )
    shards = models / "diffusion_models/lingbot-world-v2-14b-causal-fast"
    shards.mkdir()
    lingbot = list(tiny.lingbot_state(dim=256, ffn_dim=512).items())
    for i in range(8):
        name = f"diffusion_pytorch_model-{i + 1:05}-of-00008.safetensors"
        save_file(dict(lingbot[i::8]), shards / name)
    shutil.copy(
        ROOT / "demo/weights/demo_world_vae.safetensors", models / "vae/wan_2.1_vae.safetensors"
    )


@pytest.fixture(scope="module")
def server(host_path, tmp_path_factory):
    base = tmp_path_factory.mktemp("base")
    write_models(base / "models")
    (base / "custom_nodes").mkdir()
    (base / "custom_nodes/tiny_text_encoder.py").write_text(TINY_TEXT_ENCODER)
    (base / "custom_nodes/tiny_clip_vision.py").write_text(TINY_CLIP_VISION)
    with dev.Server(host_path, base=base, cpu=True) as running:
        results = running.run(
            {
                "1": {
                    "class_type": "EmptyImage",
                    "inputs": {
                        "width": SIDE,
                        "height": SIDE,
                        "batch_size": CLIP_PICTURES,
                        "color": 5000,
                    },
                },
                "2": {
                    "class_type": "CreateVideo",
                    "inputs": {"images": ["1", 0], "fps": 16.0, "bit_depth": 8},
                },
                "3": {
                    "class_type": "SaveVideo",
                    "inputs": {
                        "video": ["2", 0],
                        "filename_prefix": "clip",
                        "format": "auto",
                        "codec": "auto",
                    },
                },
                "4": {
                    "class_type": "SaveImage",
                    "inputs": {"images": ["1", 0], "filename_prefix": "picture"},
                },
            }
        )
        shutil.copy(running.file(results["outputs"]["3"]["images"][0]), base / "input/my_clip.mp4")
        shutil.copy(running.file(results["outputs"]["4"]["images"][0]), base / "input/example.png")
        yield running
    shutil.rmtree(base)


# By name: latent frames of the take, of which given; its chunks, window and sink, which the profile
# of the file's name says unless a node does.
CASES = {
    "real_text_to_long_video": (9, 0, 3, 12, 3),
    "real_image_to_video": (4, 1, 4, 21, 0),
    "real_continue_a_clip": (5, 3, 5, 21, 0),
    "real_12_gb_card": (14, 0, 14, 12, 3),
    "world_keys": (9, 0, 3, 6, 0),
}


def small(name: str, frames: int) -> dict:
    """The workflow as it ships, in small and short."""
    graph = json.loads((ROOT / f"workflows/api/{name}.json").read_text())
    for node in graph.values():
        inputs = node["inputs"]
        if node["class_type"] in STAND_INS:
            node["class_type"], node["inputs"] = STAND_INS[node["class_type"]], {}
        if "width" in inputs:
            inputs["width"] = inputs["height"] = SIDE
        if node["class_type"] in LONG:
            inputs["length"] = 4 * (frames - 1) + 1
        if node["class_type"] == "KeepsakePromptTimeline":
            inputs["text"] = "0: harbour at day\n3: harbour at night"
    return graph


@pytest.mark.parametrize("name", CASES)
def test_a_workflow_for_a_checkpoint_runs(name, server):
    frames, given, chunks, window, sink = CASES[name]
    graph = small(name, frames)
    outputs = server.run(graph)["outputs"]
    of = {node["class_type"]: outputs.get(key) for key, node in graph.items()}
    stats = server.values(of["KeepsakeKVMemoryStats"], "kv_stats_file")
    assert (stats["frames"], stats["given_frames"], len(stats["chunks"])) == (frames, given, chunks)
    retention = stats["policy"]["retention"]
    assert (retention["window_frames"], retention["sink_frames"]) == (window, sink)
    assert server.file(of["SaveVideo"]["images"][0]).stat().st_size > 1000


@pytest.mark.parametrize(
    "name, frames, given, chunks", [("world_walk", 8, 0, 2), ("world_continue", 11, 3, 3)]
)
def test_lingbot_walks_from_a_picture_to_a_video(name, frames, given, chunks, server):
    graph = small(name, frames)
    outputs = server.run(graph)["outputs"]
    of = {node["class_type"]: outputs.get(key) for key, node in graph.items()}
    stats = server.values(of["KeepsakeKVMemoryStats"], "kv_stats_file")
    assert (stats["frames"], stats["given_frames"], len(stats["chunks"])) == (frames, given, chunks)
    assert stats["policy"]["retention"]["name"] == "DeCoPrune"
    assert server.file(of["SaveVideo"]["images"][0]).stat().st_size > 1000
    (line,) = of["KeepsakeARVideoModelLoader"]["text"]
    assert "8 shards" in line and "needs a camera" in line and "CC BY-NC-SA" in line
    assert f"{frames} latent frames of" in of["KeepsakeWorldCamera"]["text"][0]
    path = server.file(of["KeepsakeWorldCamera"]["images"][0])
    assert path.stat().st_size > 1000  # from above
