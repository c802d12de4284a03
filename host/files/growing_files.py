"""A take that goes into files while it is made: its video, and what it needs to go on after a
crash.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import folder_paths
import torch
from torch import Tensor

from ...kv_policies import KVMemoryError
from ...kv_policies.state import count_of, part_of, tensor_of
from ...rollout.memory_file import KVMemory, chunks_of
from ...rollout.tree_file import load_tree, save_tree, when_free
from .names import free_path, writing
from .stream_decode import StreamDecoder, require_causal
from .video_file import append, fragment

VIDEO = ".mp4"
FOLDER = ".take"  # ending of the folder beside the video
MEMORY = "memory.safetensors"  # in that folder
# Above any count that a file of ours can hold.
MOST_PICTURES, MOST_BYTES = 2**40, 2**60


@dataclass(frozen=True)
class StreamToFile:
    """Where a take goes while it is made. Parameters only."""

    vae: object
    filename_prefix: str
    fps: float
    save_every: int  # chunks from one save to the next
    resume: bool  # go on with the latest take of this name
    metadata: Mapping[str, str] | None = None  # of a new video, see `graph_of`

    def __post_init__(self):
        require_causal(self.vae)

    def open(self, model) -> GrowingFiles:
        """The files of a new take, or with `resume` of the latest one that was saved."""
        channels = model.get_model_object("latent_format").latent_channels
        if self.vae.latent_channels != channels:
            raise ValueError(
                f"The stream's VAE decodes latents of {self.vae.latent_channels} channels, and "
                f"this model's have {channels}. Connect its own VAE."
            )
        files = GrowingFiles(self, StreamDecoder(self.vae, model))
        latest = self._latest_video()
        if self.resume and (latest.with_suffix(FOLDER) / MEMORY).exists():
            files.restore(latest)
        return files

    def free_path(self) -> Path:
        return free_path(self.filename_prefix, folder_paths.get_output_directory(), VIDEO)

    def _latest_video(self) -> Path:
        """The video whose number is the one before the next free one; it need not exist."""
        path = self.free_path()
        stem, number = path.stem.rstrip("_").rsplit("_", 1)
        return path.with_name(f"{stem}_{int(number) - 1:05}_{VIDEO}")


class GrowingFiles:
    """The files of one take while it is made.

    Beside the video lies a folder. Its `memory.safetensors` is replaced at each save; it holds the
    KV memory without the latents, the decoder's state, and how long the video was. For each save
    there is also a file of the latents that came since the one before. What `memory.safetensors`
    does not count is left from a crash, and is written over.

    While another program holds the video, as Windows lets one do, new fragments wait here for the
    next chunk, and are in the memory of each save.
    """

    def __init__(self, stream: StreamToFile, decoder: StreamDecoder):
        self.stream = stream
        self.decoder = decoder
        self.video: Path | None = None  # a new take is named when its first pictures come
        self.pictures = 0  # in the video and the fragments that wait
        self.size = 0  # bytes of the video
        self.waiting = b""  # fragments that come next in the video
        self.saved = 0  # latent frames in the files
        self.memory: KVMemory | None = None  # that the take goes on from
        self._begun = False  # whether the video is this take's, and ends where the take goes on

    @property
    def folder(self) -> Path:
        return self.video.with_suffix(FOLDER)

    def restore(self, video: Path):
        """Go on from the last save. KVMemoryError where the files do not belong together."""
        self.video = video
        parts = load_tree(self.folder / MEMORY)
        latents = self._load_latents(parts)
        # How the video was at the save.
        saved_video = part_of(parts, "video", dict)
        fps = part_of(saved_video, "fps", float)
        if fps != self.stream.fps:
            raise KVMemoryError(
                f"{video.name} has {fps:g} pictures a second, and the stream is to have "
                f"{self.stream.fps:g}. Set fps as it was, or turn resume off to begin a new take."
            )
        self.memory = KVMemory.from_parts({**parts, "latents": latents})
        self.decoder.restore(part_of(saved_video, "decoder", dict))
        self.pictures = count_of(saved_video, "pictures", MOST_PICTURES)
        self.size = count_of(saved_video, "bytes", MOST_BYTES)
        if "waiting" in saved_video:
            waiting = tensor_of(saved_video, "waiting", torch.uint8, None)
            self.waiting = waiting.numpy().tobytes()
        if self._video_size() < self.size:
            raise KVMemoryError(
                f"{video.name} is shorter than at its last save, so it cannot go on. Turn resume "
                "off to begin a new take."
            )

    def _load_latents(self, parts: dict) -> Tensor:
        """Raw latents `[1, C, F, 2h, 2w]` of all saves, as many as the memory's chunks have."""
        frames = chunks_of(parts)[-1].end_frame
        dtype = part_of(parts, "latents", Tensor).dtype
        empty = tensor_of(parts, "latents", dtype, 1, None, 0, None, None)
        _, channels, _, height, width = empty.shape
        shape = (1, channels, None, height, width)
        latents = []
        while self.saved < frames:
            part = tensor_of(load_tree(self._part(self.saved)), "latents", dtype, *shape)
            latents.append(part)
            if not part.shape[2]:
                break
            self.saved += part.shape[2]
        if self.saved != frames:
            raise KVMemoryError(
                f"The files in {self.folder} do not belong together: {self.saved} latent frames "
                f"beside a memory of {frames}. Turn resume off to begin a new take."
            )
        return torch.cat(latents, 2)

    def add(self, latents: Tensor):
        """Decode raw latents of the next frames, `[1, C, F, 2h, 2w]`, into the video."""
        pictures = self.decoder(latents)
        if self.video is None:
            self.video = self.stream.free_path()
            with writing(self.video):
                self.video.open("x").close()  # an empty file takes the name
        self._append(pictures)

    def save(self, memory: KVMemory, ended: bool):
        """Make what came so far safe; `memory` has the latents since the save before.

        When the take has `ended`, a frame that waits for its pair is decoded alone. That comes
        after the state that is saved, so that a longer take can go on from before it.
        """
        with writing(self.folder):
            self.folder.mkdir(exist_ok=True)
        saved_video = {
            "decoder": self.decoder.state(),
            "pictures": self.pictures,
            "bytes": self.size,
            "fps": self.stream.fps,
        }
        if self.waiting:
            saved_video["waiting"] = torch.frombuffer(bytearray(self.waiting), dtype=torch.uint8)
        if ended:
            self._append(self.decoder.last())
        save_tree({"latents": memory.latents}, self._part(self.saved))
        without_latents = replace(memory, latents=memory.latents[:, :, :0])
        save_tree({**without_latents.parts(), "video": saved_video}, self.folder / MEMORY)
        self.saved = memory.frames

    def report(self) -> str:
        held = (
            " The latest are not in it: another program holds the file open. Close it; the latents "
            "have them, and a take that goes on writes them."
            if self.waiting
            else ""
        )
        return (
            f"Streamed to {self.video}: {self.pictures} pictures.{held} "
            f"Saved up to latent frame {self.saved}."
        )

    def _append(self, pictures: Tensor):
        if len(pictures):
            self.waiting += fragment(pictures, self.pictures, self.stream.fps, self.stream.metadata)
            self.pictures += len(pictures)
        try:
            with writing(self.video):
                when_free(self._write)
        except PermissionError:
            logging.warning(
                "Keepsake: another program holds %s; its pictures wait for the next chunk.",
                self.video,
            )

    def _write(self):
        """Put the fragments that wait into the video; PermissionError where another program holds
        it.
        """
        if not self._begun:
            os.truncate(self.video, self.size)  # back to the save that the take goes on from
            self._begun = True
        if not self.waiting:
            return
        if self._video_size() != self.size:
            raise RuntimeError(
                f"{self.video.name} is not as this take left it: it was removed, or another take "
                "goes on in it. Turn resume on to go on from the last save, in one ComfyUI at a "
                "time."
            )
        append(self.video, self.waiting)
        self.size = self._video_size()
        self.waiting = b""

    def _video_size(self) -> int:
        return self.video.stat().st_size if self.video.exists() else 0

    def _part(self, first: int) -> Path:
        """The file of the latents from latent frame `first` on."""
        return self.folder / f"latents_{first:08}.safetensors"
