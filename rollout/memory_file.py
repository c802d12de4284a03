"""A take's memory between two runs: a value, and one safetensors file of it (tensors, and a JSON
header).
"""

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
    """What a take's stream is called in a memory, and in every run that goes on from it."""
    return f"prompt {number}"


def chunks_of(parts: State) -> tuple[Chunk, ...]:
    """The chunks that a memory's parts tell of. KVMemoryError where they cannot be those of a take."""
    chunks: list[Chunk] = []
    for entry in part_of(parts, "chunks", list):
        start, frames, given, shot = counts_of({"chunk": entry}, "chunk", MOST_FRAMES, 4)
        if (
            start != (chunks[-1].end_frame if chunks else 0)
            or frames < 1
            or given > 1
            or given
            and chunks
            and not chunks[-1].given
        ):
            raise damaged("its chunks do not follow each other")
        chunks.append(Chunk(len(chunks), start, frames, bool(given), Cue(shot=shot)))
    if not chunks:
        raise damaged("it holds no chunk")
    return tuple(chunks)


@dataclass(frozen=True, eq=False)
class KVMemory:
    """Everything that a take needs to go on. All tensors lie on the CPU."""

    about: State  # plain values: the model, the policy and what else must be the same to go on
    chunks: tuple[Chunk, ...]  # made so far
    latents: Tensor  # [1, C, frames so far, 2h, 2w], normalised
    prefix: Tensor | None  # [1, C, P, 2h, 2w]: the given latents as they came
    streams: State  # caches and runs, see `Session.state`
    carried: dict[str, Tensor]  # see `Stage.carried`

    @classmethod
    def copied(
        cls,
        about: State,
        chunks: Sequence[Chunk],
        latents: Tensor,
        prefix: Tensor | None,
        streams: State,
        carried: dict[str, Tensor],
    ) -> KVMemory:
        """Of a run, whose tensors go with it; `streams` are copies already."""

        def copy(x: Tensor) -> Tensor:
            return x.to("cpu", copy=True)

        return cls(
            about,
            tuple(chunks),
            copy(latents),
            None if prefix is None else copy(prefix),
            streams,
            {name: copy(x) for name, x in carried.items()},
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
        """KVMemoryError where `carried` is not what the schedule carries, see `Schedule.carries`."""
        if self.carried.keys() != expected.keys():
            raise damaged(f"it carries {len(self.carried)} latents and must carry {len(expected)}")
        for name, frames in expected.items():
            tensor_of(
                self.carried,
                name,
                self.latents.dtype,
                1,
                self.latents.shape[1],
                frames,
                *self.latents.shape[3:],
            )

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
        """Check what can be known without the take; the rest is checked where the session takes it
        over.
        """
        chunks = chunks_of(parts)
        latents = part_of(parts, "latents", Tensor)
        if not latents.is_floating_point():
            raise damaged(f"its latents are {latents.dtype}")
        tensor_of(parts, "latents", latents.dtype, 1, None, chunks[-1].end_frame, None, None)
        _, channels, _, height, width = latents.shape
        prefix = part_of(parts, "prefix", dict)
        given = part_of(prefix, "latents", Tensor) if prefix else None
        if given is not None:
            tensor_of(prefix, "latents", given.dtype, 1, channels, None, height, width)
        if sum(chunk.frames for chunk in chunks if chunk.given) != (
            0 if given is None else given.shape[2]
        ):
            raise damaged("its given latents are not those of its given chunks")
        about, carried, strange = part_of(parts, "about", dict), part_of(parts, "carried", dict), {}
        pack(about, "", strange)
        if strange:
            raise damaged("its description of the take holds tensors")
        return cls(
            about,
            chunks,
            latents,
            given,
            part_of(parts, "streams", dict),
            {name: part_of(carried, name, Tensor) for name in carried},
        )


def save_memory(memory: KVMemory, path: Path):
    """Write the file, see `save_tree`."""
    save_tree(memory.parts(), path)


def load_memory(path: Path) -> KVMemory:
    """Read such a file. KVMemoryError, in a sentence, for every file that is none."""
    return KVMemory.from_parts(load_tree(path))
