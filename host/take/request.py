"""What a user asks of a take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ...kv_policies import KVPolicy
from ...rollout.memory_file import KVMemory
from ..forward.controls import Control


@dataclass(frozen=True, kw_only=True, eq=False)
class TakeRequest:
    """What a user asks of a take, beside model, prompts, noise, sigmas and seed, which ComfyUI's
    sampling call brings.
    """

    policy: KVPolicy | None = None  # None: the one of the model's profile
    chunk_frames: int = 0  # latent frames of a chunk; 0: the profile's
    prefix: Tensor | None = None  # given raw latents [B, C, P, 2h, 2w] that the take begins with
    control: Control | None = None  # for models that follow one
    noise_index: Sequence[int] | None = None  # numbers of the batch items' noise; None: 0, 1, 2 ...
    memory: KVMemory | None = None  # go on from here
    stop_after: int = 0  # end with the chunk that reaches this latent frame; 0: with the last one
    drop_given: bool = False  # return the new latent frames alone
    save_input: str = ""  # the input that asks to save a memory: "keep_memory", "stream", or none
