"""A take's memory between two runs, as a value and as one safetensors file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..kv_policies import Chunk, Cue, State
from ..kv_policies.state import counts_of, damaged, part_of, tensor_of
from .tree_file import load_tree, pack, save_tree

MOST_FRAMES = 2**31


def stream_name(number: int) -> str:
    """The name of a take's stream in a saved memory, the same in every run."""
    return f"prompt {number}"


def chunks_of(parts: State) -> tuple[Chunk, ...]:
    """The chunks in a memory's parts. KVMemoryError where no take can have such chunks."""
    chunks: list[Chunk] = []
    for entry in part_of(parts, "chunks", list):
        start, frames, given, shot = counts_of({"chunk": entry}, "chunk", MOST_FRAMES, 4)
        follows = start == (chunks[-1].end_frame if chunks else 0)
        given_after_new = given and chunks and not chunks[-1].given
        if not follows or frames < 1 or given > 1 or given_after_new:
            raise damaged("its chunks do not follow each other")
        chunks.append(Chunk(len(chunks), start, frames, bool(given), Cue(shot=shot)))
    if not chunks:
        raise damaged("it holds no chunk")
    return tuple(chunks)


@dataclass(frozen=True, kw_only=True, eq=False)
class KVMemory:
    """Everything that a take needs to go on. All tensors lie on the CPU."""

    about: State  # plain values: model, policy and all else that must be the same to go on
    chunks: tuple[Chunk, ...]  # the finished ones
    latents: Tensor  # [1, C, frames so far, 2h, 2w], normalised
    prefix: Tensor | None  # [1, C, P, 2h, 2w]: the given latents as they came
    streams: State  # caches and runs, see `Session.state`
    carried: dict[str, Tensor]  # see `Stage.carried`

    def __repr__(self) -> str:
        """Short: where a node fails, the host sends all its inputs to the page in one message."""
        return f"<KVMemory of {self.frames} latent frames>"

    @classmethod
    def copied(
        cls,
        *,
        about: State,
        chunks: Sequence[Chunk],
        latents: Tensor,
        prefix: Tensor | None,
        streams: State,
        carried: dict[str, Tensor],
    ) -> KVMemory:
        """A memory that outlives its run: all tensors are copied, but `streams`, which are copies
        already.
        """

        def copy(x: Tensor) -> Tensor:
            return x.to("cpu", copy=True)

        return cls(
            about=about,
            chunks=tuple(chunks),
            latents=copy(latents),
            prefix=None if prefix is None else copy(prefix),
            streams=streams,
            carried={name: copy(x) for name, x in carried.items()},
        )

    @property
    def frames(self) -> int:
        return self.chunks[-1].end_frame

    @property
    def nbytes(self) -> int:
        tensors: dict[str, Tensor] = {}
        pack(self.parts(), "", tensors)
        return sum(tensor.nbytes for tensor in tensors.values())

    def check_carried(self, expected: dict[str, int]):
        """KVMemoryError where `carried` is not what `Schedule.carries` says it must be."""
        if self.carried.keys() != expected.keys():
            raise damaged(f"it carries {len(self.carried)} latents and must carry {len(expected)}")
        _, channels, _, *size = self.latents.shape
        for name, frames in expected.items():
            tensor_of(self.carried, name, self.latents.dtype, 1, channels, frames, *size)

    def report(self) -> str:
        return f"KV memory of {self.frames} latent frames: {self.nbytes / 2**20:,.1f} MiB."

    def parts(self) -> State:
        chunks = [
            [chunk.start_frame, chunk.frames, int(chunk.given), chunk.cue.shot]
            for chunk in self.chunks
        ]
        return {
            "about": self.about,
            "chunks": chunks,
            "latents": self.latents,
            "prefix": {} if self.prefix is None else {"latents": self.prefix},
            "streams": self.streams,
            "carried": self.carried,
        }

    @classmethod
    def from_parts(cls, parts: State) -> KVMemory:
        """Check what can be known without the take; a session checks the rest. KVMemoryError."""
        # 1. Finished chunks and their latents.
        chunks = chunks_of(parts)
        latents = part_of(parts, "latents", Tensor)
        if not latents.is_floating_point():
            raise damaged(f"its latents are {latents.dtype}")
        tensor_of(parts, "latents", latents.dtype, 1, None, chunks[-1].end_frame, None, None)
        _, channels, _, height, width = latents.shape
        # 2. The prefix, which fills the given chunks.
        prefix = part_of(parts, "prefix", dict)
        given = part_of(prefix, "latents", Tensor) if prefix else None
        if given is not None:
            tensor_of(prefix, "latents", given.dtype, 1, channels, None, height, width)
        given_frames = 0 if given is None else given.shape[2]
        if sum(chunk.frames for chunk in chunks if chunk.given) != given_frames:
            raise damaged("its given latents are not those of its given chunks")
        # 3. The description of the take, which holds plain values only.
        about = part_of(parts, "about", dict)
        tensors: dict[str, Tensor] = {}
        pack(about, "", tensors)
        if tensors:
            raise damaged("its description of the take holds tensors")
        # 4. What is checked further by the session and the schedule.
        carried = part_of(parts, "carried", dict)
        return cls(
            about=about,
            chunks=chunks,
            latents=latents,
            prefix=given,
            streams=part_of(parts, "streams", dict),
            carried={name: part_of(carried, name, Tensor) for name in carried},
        )


def save_memory(memory: KVMemory, path: Path):
    """Write the file, see `save_tree`."""
    save_tree(memory.parts(), path)


def load_memory(path: Path) -> KVMemory:
    """Read a file of `save_memory`. KVMemoryError, in a sentence, for every other file."""
    return KVMemory.from_parts(load_tree(path))
