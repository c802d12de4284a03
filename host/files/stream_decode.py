"""Decoding a take while it grows: Wan's causal VAE a few latent frames at a time, with the state
that its decoder carries from one frame to the next.
"""

import comfy.model_management
import torch
from comfy.ldm.wan.vae import WanVAE, count_cache_layers
from torch import Tensor

from ...kv_policies import State
from ...kv_policies.state import damaged, part_of, tensor_of

# What the host's decoder puts into its cache after the first frame, in a tensor's place.
AFTER_FIRST_FRAME = "Rep"
NO_PICTURES = (0, 0, 0, 3)


def require_causal(vae):
    """Raise ValueError for a VAE that cannot be decoded in steps."""
    model = vae.first_stage_model
    if type(model) is not WanVAE:
        raise ValueError(
            f"This VAE is {type(model).__name__}, and a stream decodes Wan 2.1's, whose decoder "
            "only looks back. Connect the Wan 2.1 VAE (or the demo world's), or leave the stream "
            "away and decode the latents afterwards."
        )


class StreamDecoder:
    """Latents in, pictures out, bit-equal to the VAE's own decode of all latents together.

    The host decodes the first latent frame alone and then two at a time, so a frame without its
    pair waits here for the next one.
    """

    def __init__(self, vae, beside):
        """`beside` is the take's MODEL, which has to stay loaded."""
        require_causal(vae)
        self.vae = vae
        self.beside = beside
        layers = count_cache_layers(vae.first_stage_model.decoder)
        self.cache: list[Tensor | str | None] = [None] * layers
        self.waiting: Tensor | None = None  # [1, C, 0 or 1, 2h, 2w]; None before the first latents

    def __call__(self, latents: Tensor) -> Tensor:
        """Pictures `[N, H, W, 3]`, 0 to 1, of the latent frame that waited and of raw latents
        `[1, C, F, 2h, 2w]`; an odd one at the end waits.
        """
        pictures = []
        if self.waiting is None:
            pictures.append(self._decode(latents[:, :, :1], self.cache))
            rest = latents[:, :, 1:]
        else:
            rest = torch.cat([self.waiting, latents.to(self.waiting)], 2)
        paired = rest.shape[2] // 2 * 2
        if paired:
            pairs = rest[:, :, :paired].split(2, 2)
            pictures += [self._decode(pair, self.cache) for pair in pairs]
        self.waiting = rest[:, :, paired:].to("cpu", copy=True)
        return torch.cat(pictures) if pictures else torch.empty(NO_PICTURES)

    def last(self) -> Tensor:
        """Pictures of the frame that still waits when the take ends. The state stays as it is, for
        a take that goes on later.
        """
        if self.waiting is None or not self.waiting.shape[2]:
            return torch.empty(NO_PICTURES)
        return self._decode(self.waiting, list(self.cache))

    def _decode(self, latents: Tensor, cache: list) -> Tensor:
        """Pictures `[N, H, W, 3]` of latents; `cache` is read and written."""
        vae = self.vae
        model = vae.first_stage_model
        comfy.model_management.load_models_gpu(
            [self.beside, vae.patcher],
            memory_required=vae.memory_used_decode(latents.shape, vae.vae_dtype),
        )
        latents = model.conv2(latents.to(vae.device, vae.vae_dtype))
        parts = model.decoder(latents, feat_cache=cache, feat_idx=[0])
        pixels = torch.cat(parts, 2).to(vae.output_device, vae.vae_output_dtype())
        return vae.process_output(pixels)[0].movedim(0, -1)

    def state(self) -> State:
        """What decoding the next latents needs, in main memory."""
        cache = [
            entry.to("cpu", copy=True) if isinstance(entry, Tensor) else entry
            for entry in self.cache
        ]
        waiting = {} if self.waiting is None else {"latents": self.waiting}
        return {"cache": cache, "waiting": waiting}

    def restore(self, state: State):
        """Go on from a `state`; KVMemoryError where it is none of this VAE's."""
        cache = part_of(state, "cache", list)
        waiting = part_of(state, "waiting", dict)
        markers = [entry for entry in cache if not isinstance(entry, Tensor)]
        are_known = all(entry in (None, AFTER_FIRST_FRAME) for entry in markers)
        if len(cache) != len(self.cache) or not are_known:
            raise damaged("its decoder's state is none of this VAE's")
        self.cache = [
            entry.to(self.vae.device) if isinstance(entry, Tensor) else entry for entry in cache
        ]
        if waiting:
            shape = (1, None, None, None, None)
            self.waiting = tensor_of(waiting, "latents", torch.float32, *shape)
        else:
            self.waiting = None
