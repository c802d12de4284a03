"""AR profiles: how a checkpoint was trained to be rolled out. A profile travels on the MODEL as
data.
"""

import json
from dataclasses import asdict, dataclass, fields

import comfy.samplers
import torch
from torch import Tensor

from ...kv_policies import (
    CleanPass,
    ContextRecompute,
    EmaSink,
    FullKV,
    Hierarchical,
    KVPolicy,
    Retention,
    RollingForcing,
    SinkWindow,
)
from ...rollout.stats import counted
from ..keys import PROFILE
from .flow import Step, flow_of

RECACHES = ("chunk by chunk", "together")  # ours, and LongLive's: see `Switch.together`
OWN_LOOPS = {"hierarchical": Hierarchical, "rolling": RollingForcing, "recompute": ContextRecompute}

LEAST = {
    "chunk_frames": 1,
    "steps": 1,
    "shift": 0,
    "window_frames": 0,
    "sink_frames": 0,
    "temporal_compression": 1,
    "first_chunk_steps": 0,
}


@dataclass(frozen=True, kw_only=True)
class ARProfile:
    """Numbers a chunk-wise model was trained with; frames are latent frames."""

    name: str = "none"
    chunk_frames: int = 3
    steps: int = 4
    shift: float = 5.0  # of the flow schedule; 0 leaves the model's own
    window_frames: int = 0  # chunk in work included; 0: all frames
    sink_frames: int = 0
    sink_rope: str = "absolute"
    whole_chunks: bool = True  # False: single frames leave the window
    # Of the sink, each time that a frame which leaves is blended into it; 1: none is.
    sink_weight: float = 1.0
    temporal_compression: int = 4  # pixel frames per latent frame after the first
    needs_control: bool = False  # the model cannot do without its control channels
    # Noise levels of the steps; empty: the host's "simple" ones at this shift.
    sigmas: tuple[float, ...] = ()
    first_chunk_steps: int = 0  # steps of the first new chunk, where it takes more
    context_noise: float = 0.0  # sigma of the clean pass
    loop: str = "chunks"  # the loop it was trained for: chunk after chunk, or one of OWN_LOOPS
    # Trained to read history at any noise level, as FlashForward's renderer does.
    noisy_history: bool = False
    # How the latest frames are run again under a new prompt, one of RECACHES.
    recache: str = "chunk by chunk"
    note: str = ""  # for the user, where our loop is not the one it was trained for
    # The steps, where each has three numbers; then `steps` are as many and `sigmas` is empty.
    table: tuple[Step, ...] = ()

    def __post_init__(self):
        for name, least in LEAST.items():
            if not getattr(self, name) >= least:  # not `<`, which NaN would pass
                raise ValueError(
                    f"An AR profile's {name} is {getattr(self, name)}. Use at least {least}."
                )
        if self.table and (self.steps != len(self.table) or self.sigmas or self.first_chunk_steps):
            raise ValueError(
                f"An AR profile has a table of {len(self.table)} steps and says {self.steps}. "
                "Let both agree, and leave sigmas and first_chunk_steps out."
            )
        if self.recache not in RECACHES:
            raise ValueError(
                f"An AR profile's recache is '{self.recache}'. Use one of: {', '.join(RECACHES)}."
            )

    def policy(self) -> KVPolicy:
        """What the sampler uses when no KV policy is connected."""
        if self.loop in OWN_LOOPS:
            return KVPolicy(schedule=OWN_LOOPS[self.loop](self.window_frames))
        return KVPolicy(self._retention(), schedule=CleanPass(self.context_noise))

    def _retention(self) -> Retention:
        if not self.window_frames:
            return FullKV()
        if self.sink_weight < 1:
            return EmaSink(self.window_frames, self.sink_frames, self.sink_weight)
        return SinkWindow(self.sink_frames, self.window_frames, self.sink_rope, self.whole_chunks)

    def take_sigmas(self, model_sampling, steps: int = 0) -> Tensor:
        """Noise levels of a chunk's steps and then 0, `[steps + 1]`; `steps` 0: as many as the
        model was trained for.
        """
        if steps < 0:
            raise ValueError(
                f"steps is {steps}. Use at least 1, or 0 for as many as the model was trained for."
            )
        levels = self.sigmas or tuple(step.sigma for step in self.table)
        if levels and steps in (0, len(levels)):
            return torch.tensor([*levels, 0.0])
        # At shift s, "simple" gives s u / (1 + (s - 1) u) at u = 1, 1 - 1/n, ...: Self-Forcing's
        # warped list [1000, 750, 500, 250].
        return comfy.samplers.calculate_sigmas(model_sampling, "simple", steps or self.steps)

    def describe(self) -> str:
        first = f" ({self.first_chunk_steps} in the first chunk)" if self.first_chunk_steps else ""
        singly = "" if self.whole_chunks else " in single frames"
        memory = (
            f"window {self.window_frames}{singly}, sink {self.sink_frames}"
            if self.window_frames
            else "all frames kept"
        )
        if self.sink_weight < 1:
            memory += f" (EMA {self.sink_weight:g})"
        chunk, steps = counted(self.chunk_frames, "latent frame"), counted(self.steps, "step")
        return f"chunks of {chunk}, {steps}{first}, shift {self.shift:g}, {memory}"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ARProfile":
        """Read a file's profile; fields that a newer Keepsake wrote are left out."""
        names = {field.name for field in fields(cls)}
        values = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in json.loads(text).items()
        }
        values["table"] = tuple(Step(*step) for step in values.get("table", ()))
        return cls(**{key: value for key, value in values.items() if key in names})


def profile_of(model_options: dict) -> ARProfile | None:
    return model_options.get("transformer_options", {}).get(PROFILE)


def with_profile(model, profile: ARProfile):
    """Give a profile, and its shift, to a clone of a MODEL."""
    model = model.clone()
    if profile.shift:
        model.add_object_patch("model_sampling", flow_of(model, profile.shift, profile.table))
    model.model_options["transformer_options"][PROFILE] = profile
    return model
