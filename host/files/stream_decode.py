"""Decoding a take while it grows: Wan's causal VAE, a few latent frames at a time, with what its
decoder carries from one to the next.
"""

import comfy.model_management
import torch
from comfy.ldm.wan.vae import WanVAE, count_cache_layers
from torch import Tensor

from ...kv_policies import State
from ...kv_policies.state import damaged, part_of, tensor_of

FIRST = (
    "Rep"  # what the host's decoder notes in its cache, in a tensor's place, after the first frame
)


def require_causal(vae):
    """Raise ValueError for a VAE that cannot be decoded in steps."""
    model = vae.first_stage_model
    if type(model) is not WanVAE:
        raise ValueError(
            f"This VAE is {type(model).__name__}, and a stream decodes Wan 2.1's, whose decoder "
            "only looks back. "
            "Connect the Wan 2.1 VAE (or the demo world's), or leave the stream away and decode "
            "the latents afterwards."
        )


class StreamDecoder:
    """Latents in, pictures out: those of the VAE's own decode of all latents together, to the last
    bit.

    The host decodes the first latent frame alone and then two at a time; so a frame without its
    pair waits here for the next.
    """

    def __init__(self, vae, beside):
        """`beside`: the take's MODEL, which has to stay loaded."""
        require_causal(vae)
        self.vae, self.beside = vae, beside
        self.cache: list[Tensor | str | None] = [None] * count_cache_layers(
            vae.first_stage_model.decoder
        )
        self.waiting: Tensor | None = None  # [1, C, 0 or 1, 2h, 2w]; None before the first latents

    def __call__(self, latents: Tensor) -> Tensor:
        """Pictures `[N, H, W, 3]`, 0 to 1, of raw latents `[1, C, F, 2h, 2w]` and the one that
        waited; an odd one waits.
        """
        pictures = [] if self.waiting is not None else [self._decode(latents[:, :, :1], self.cache)]
        rest = (
            latents[:, :, 1:]
            if self.waiting is None
            else torch.cat([self.waiting, latents.to(self.waiting)], 2)
        )
        pairs = rest.shape[2] // 2 * 2
        pictures += [
            self._decode(pair, self.cache)
            for pair in rest[:, :, :pairs].split(2, 2)
            if pair.shape[2]
        ]
        self.waiting = rest[:, :, pairs:].to("cpu", copy=True)
        return torch.cat(pictures) if pictures else torch.empty(0, 0, 0, 3)

    def last(self) -> Tensor:
        """Pictures of a frame that waits in vain; the state stays as it is, for a take that goes
        on.
        """
        return (
            self._decode(self.waiting, list(self.cache))
            if self.waiting is not None and self.waiting.shape[2]
            else torch.empty(0, 0, 0, 3)
        )

    def _decode(self, latents: Tensor, cache: list) -> Tensor:
        vae, model = self.vae, self.vae.first_stage_model
        comfy.model_management.load_models_gpu(
            [self.beside, vae.patcher],
            memory_required=vae.memory_used_decode(latents.shape, vae.vae_dtype),
        )
        out = model.decoder(
            model.conv2(latents.to(vae.device, vae.vae_dtype)), feat_cache=cache, feat_idx=[0]
        )
        out = torch.cat(out, 2).to(vae.output_device, vae.vae_output_dtype())
        return vae.process_output(out)[0].movedim(0, -1)

    def state(self) -> State:
        """What the next latents need."""
        return {
            "cache": [
                entry.to("cpu", copy=True) if isinstance(entry, Tensor) else entry
                for entry in self.cache
            ],
            "waiting": {} if self.waiting is None else {"latents": self.waiting},
        }

    def restore(self, state: State):
        cache, waiting = part_of(state, "cache", list), part_of(state, "waiting", dict)
        if len(cache) != len(self.cache) or any(
            not isinstance(entry, Tensor) and entry not in (None, FIRST) for entry in cache
        ):
            raise damaged("its decoder's state is none of this VAE's")
        self.cache = [
            entry.to(self.vae.device) if isinstance(entry, Tensor) else entry for entry in cache
        ]
        self.waiting = (
            tensor_of(waiting, "latents", torch.float32, 1, None, None, None, None)
            if waiting
            else None
        )
