"""A take that goes into files while it is made: its video, and what it needs to go on after a
crash.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import folder_paths
import torch
from torch import Tensor

from ...kv_policies import KVMemoryError
from ...kv_policies.state import count_of, part_of, tensor_of
from ...rollout.memory_file import KVMemory, chunks_of
from ...rollout.tree_file import load_tree, save_tree
from .names import free_path
from .stream_decode import StreamDecoder, require_causal
from .video_file import append_pictures

VIDEO, FOLDER, MEMORY = ".mp4", ".take", "memory.safetensors"


@dataclass(frozen=True)
class StreamToFile:
    """Where a take goes while it is made. Parameters only."""

    vae: object
    filename_prefix: str
    fps: float
    save_every: int  # chunks from one save to the next
    resume: bool  # go on with the latest take of this name

    def __post_init__(self):
        require_causal(self.vae)

    def open(self, model) -> TakeFile:
        """The files of a new take, or with `resume` of the latest one that was saved."""
        channels = model.get_model_object("latent_format").latent_channels
        if self.vae.latent_channels != channels:
            raise ValueError(
                f"The stream's VAE decodes latents of {self.vae.latent_channels} channels, and "
                f"this model's have {channels}. Connect "
                "its own VAE."
            )
        take, path = TakeFile(self, StreamDecoder(self.vae, model)), self.free_path()
        stem, number = path.stem.rstrip("_").rsplit("_", 1)
        latest = path.with_name(f"{stem}_{int(number) - 1:05}_{VIDEO}")
        if self.resume and (latest.with_suffix(FOLDER) / MEMORY).exists():
            take.restore(latest)
        return take

    def free_path(self) -> Path:
        return free_path(self.filename_prefix, folder_paths.get_output_directory(), VIDEO)


class TakeFile:
    """The files of one take in work.

    Beside the video lies a folder: `memory.safetensors`, replaced at each save, with where the
    decoder and the video stand and without the latents; and for each save a file of the latents
    that came since. What the memory does not speak of is not there yet.
    """

    def __init__(self, stream: StreamToFile, decoder: StreamDecoder):
        self.stream, self.decoder = stream, decoder
        self.video: Path | None = None  # a new take is named when its first pictures come
        self.pictures = self.size = self.saved = (
            0  # pictures and bytes of the video; latent frames in the files
        )
        self.memory: KVMemory | None = None  # that the take goes on from
        self._begun = False

    @property
    def folder(self) -> Path:
        return self.video.with_suffix(FOLDER)

    def restore(self, video: Path):
        """Take up where the last save was. KVMemoryError where the files do not belong together."""
        self.video = video
        parts, latents = load_tree(self.folder / MEMORY), []
        frames, kind = chunks_of(parts)[-1].end_frame, part_of(parts, "latents", Tensor)
        _, channels, _, *size = tensor_of(
            parts, "latents", kind.dtype, 1, None, 0, None, None
        ).shape
        while self.saved < frames:
            latents.append(
                tensor_of(
                    load_tree(self._part(self.saved)),
                    "latents",
                    kind.dtype,
                    1,
                    channels,
                    None,
                    *size,
                )
            )
            if not latents[-1].shape[2]:
                break
            self.saved += latents[-1].shape[2]
        if self.saved != frames:
            raise KVMemoryError(
                f"The files in {self.folder} do not belong together: {self.saved} latent frames "
                f"beside a memory of {frames}. "
                "Turn resume off to begin a new take."
            )
        stood = part_of(parts, "video", dict)
        fps = part_of(stood, "fps", float)
        if fps != self.stream.fps:
            raise KVMemoryError(
                f"{video.name} has {fps:g} pictures a second, and the stream is to have "
                f"{self.stream.fps:g}. Set fps as it was, or "
                "turn resume off to begin a new take."
            )
        self.memory = KVMemory.from_parts({**parts, "latents": torch.cat(latents, 2)})
        self.decoder.restore(part_of(stood, "decoder", dict))
        self.pictures, self.size = (
            count_of(stood, "pictures", 2**40),
            count_of(stood, "bytes", 2**60),
        )
        if self._stands() < self.size:
            raise KVMemoryError(
                f"{video.name} is shorter than at its last save, so it cannot go on. Turn resume "
                "off to begin a new take."
            )

    def add(self, latents: Tensor):
        """Decode raw latents of the next frames, `[1, C, F, 2h, 2w]`, into the video."""
        pictures = self.decoder(latents)
        if not self._begun and self.memory:  # what came after the save is made again
            os.truncate(self.video, self.size)
        elif not self._begun:
            self.video = self.stream.free_path()
            self.video.open("x").close()  # the name is this take's from here on
        self._begun = True
        self._append(pictures)

    def save(self, memory: KVMemory, ended: bool):
        """Make what came so far safe; `memory` has the latents since the save before.

        When the take has `ended`, a last frame no longer waits for its pair; a longer take would go
        on from before it.
        """
        self.folder.mkdir(exist_ok=True)
        stood = {
            "decoder": self.decoder.state(),
            "pictures": self.pictures,
            "bytes": self.size,
            "fps": self.stream.fps,
        }
        if ended:
            self._append(self.decoder.last())
        save_tree({"latents": memory.latents}, self._part(self.saved))
        save_tree(
            {**replace(memory, latents=memory.latents[:, :, :0]).parts(), "video": stood},
            self.folder / MEMORY,
        )
        self.saved = memory.frames

    def report(self) -> str:
        return f"Streamed to {self.video}: {self.pictures} pictures. Saved up to latent frame {self.saved}."

    def _append(self, pictures: Tensor):
        if len(pictures):
            if self._stands() != self.size:
                raise RuntimeError(
                    f"{self.video.name} is not as this take left it: it was removed, or another "
                    "take goes on in it. Turn resume on "
                    "to go on from the last save, in one ComfyUI at a time."
                )
            append_pictures(self.video, pictures, self.pictures, self.stream.fps)
            self.pictures, self.size = self.pictures + len(pictures), self._stands()

    def _stands(self) -> int:
        return self.video.stat().st_size if self.video.exists() else 0

    def _part(self, first: int) -> Path:
        return self.folder / f"latents_{first:08}.safetensors"
