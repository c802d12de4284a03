"""What makes the takes of a row: MODEL, text encoder, VAE and policy, from its graph."""

from functools import cached_property

import node_helpers
import torch
from keepsake.host.files.stream_decode import StreamDecoder
from keepsake.host.files.video_file import as_bytes
from keepsake.host.model.kinds import kind_of_backbone
from keepsake.host.model.profiles import ARProfile, profile_of
from keepsake.host.take.take import sample_take
from keepsake.kv_policies import KVPolicy
from keepsake.rollout.stats import KVStats
from torch import Tensor

from .graphs import Row, clip_link, vae_link
from .node_run import NodeRun

CELL = 8  # pixels of a latent cell's side
WAN_CHANNELS = 16  # of the latents of Wan 2.1's VAE, which can be decoded as a stream
DECODED = 8  # latent frames that are decoded at a time


class Maker:
    """Takes of one row. Rows that share a NodeRun share its models."""

    def __init__(self, row: Row, nodes: NodeRun):
        self.row = row
        self.nodes = nodes
        self._texts = {}

    def _of_sampler(self, name: str):
        link = self.row.link(name)
        return self.nodes.output(self.row.graph, link) if link else None

    @cached_property
    def policy(self) -> KVPolicy | None:
        """None: the one of the model's profile."""
        return self._of_sampler("kv_policy")

    @cached_property
    def model(self):
        return self._of_sampler("model")

    @property
    def profile(self) -> ARProfile:
        return profile_of(self.model.model_options) or ARProfile()

    @cached_property
    def vae(self):
        return self.nodes.output(self.row.graph, vae_link(self.row.graph))

    @cached_property
    def clip(self):
        return self.nodes.output(
            self.row.graph, clip_link(self.row.graph, self.row.sampler["positive"])
        )

    def load(self):
        """Everything, before the first take. ValueError, in a sentence, for a file that is not
        there.
        """
        try:
            _ = self.policy, self.model, self.clip, self.vae
        except FileNotFoundError as error:
            raise ValueError(
                f"{error} Name a file in ComfyUI's model folders (extra_model_paths.yaml counts), "
                "or give its path."
            ) from None

    @property
    def kind(self):
        """What kind of world model it is; None for the host's own classes."""
        return kind_of_backbone(self.model.get_model_object("diffusion_model"))

    @property
    def takes_start_image(self) -> bool:
        return bool(getattr(self.model.model, "image_to_video", False))

    def encoded_text(self, prompt: str):
        """Kept, since takes of several seeds have the same."""
        if prompt not in self._texts:
            tokens = self.clip.tokenize(prompt)
            self._texts[prompt] = self.clip.encode_from_tokens_scheduled(tokens)
        return self._texts[prompt]

    def start_image(self, picture: Tensor, frames: int) -> dict[str, Tensor]:
        """The conditioning values of a take of `frames` latent frames that begins with `picture`
        [H, W, 3], 0 to 1: the host's own WanImageToVideo.
        """
        from comfy_extras.nodes_wan import WanImageToVideo

        height, width = picture.shape[:2]
        nothing = [[torch.zeros(1, 1, 1), {}]]
        length = 4 * (frames - 1) + 1
        made = WanImageToVideo.execute(
            nothing, nothing, self.vae, width, height, length, 1, start_image=picture[None]
        )
        return made.args[0][0][1]

    def take(
        self,
        prompt: str,
        frames: int,
        size: tuple[int, int],
        seed: int,
        prefix: Tensor | None = None,
        control=None,
        start_image: dict[str, Tensor] | None = None,
        policy: KVPolicy | None = None,
    ) -> tuple[Tensor, KVStats]:
        """Latents [1, C, frames, h, w] of a take of `size` (height, width) in pixels, and its
        stats. `prefix` are given latents; `control`, see the sampler; `start_image` is as the
        method of that name gives it; `policy`: in place of the row's. ValueError where the model
        gave numbers that make no pictures.
        """
        positive = self.encoded_text(prompt)
        if start_image:
            positive = node_helpers.conditioning_set_values(positive, start_image)
        cfg = self.row.sampler.get("cfg", 1.0)
        cells = (side // CELL for side in size)
        channels = self.model.get_model_object("latent_format").latent_channels
        out, stats = sample_take(
            self.model,
            positive,
            self._of_sampler("negative") if cfg != 1 else None,
            cfg,
            {"samples": torch.zeros(1, channels, frames, *cells)},
            seed=seed,
            steps=self.row.sampler.get("steps", 0),
            chunk_frames=self.row.sampler.get("chunk_frames", 0),
            policy=policy or self.policy,
            prefix=None if prefix is None else {"samples": prefix},
            control=control,
            sigmas=self._of_sampler("sigmas"),
            callback=lambda *step: None,
        )
        if not bool(torch.isfinite(out["samples"]).all()):
            raise ValueError("the take holds numbers that are not finite")
        return out["samples"], stats

    def encode(self, pictures: Tensor) -> Tensor:
        """Latents [1, C, F, h, w] of pictures [N, H, W, 3], 0 to 1; N is 4 (F - 1) + 1."""
        return self.vae.encode(pictures)

    def decode(self, latents: Tensor, first: int = 0) -> Tensor:
        """Pictures [N, H, W, 3] of latents [1, C, F, h, w] as bytes, from picture `first` on. The
        decoder looks back, so all are decoded and the ones before `first` forgotten.
        """
        if latents.shape[1] != WAN_CHANNELS:
            return as_bytes(self.vae.decode(latents).flatten(0, 1)[first:].cpu())
        decoder = StreamDecoder(self.vae, self.model)
        kept, count = [], 0
        for part in (*latents.split(DECODED, 2), None):
            pictures = decoder.last() if part is None else decoder(part)
            kept.append(as_bytes(pictures[max(0, first - count) :].cpu()))
            count += len(pictures)
        # Of an odd number of latent frames none is left at the end, in no pictures' shape.
        return torch.cat([pictures for pictures in kept if len(pictures)])
