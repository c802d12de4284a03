"""AR profiles: how a checkpoint was trained to be rolled out, and the table of published
checkpoints. A profile travels on the MODEL as data.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields

import comfy.samplers
import torch
from torch import Tensor

from ...kv_policies import (
    CleanPass,
    ContextRecompute,
    FullKV,
    Hierarchical,
    KVPolicy,
    RollingForcing,
    SinkWindow,
)
from ...rollout.stats import counted
from ..keys import PROFILE

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


@dataclass(frozen=True)
class ARProfile:
    """Numbers a chunk-wise model was trained with; frames are latent frames."""

    name: str = "none"
    chunk_frames: int = 3
    steps: int = 4
    shift: float = 5.0  # of the flow schedule; 0 leaves the model's own
    window_frames: int = 0  # chunk in work included; 0: all frames
    sink_frames: int = 0
    sink_rope: str = "absolute"
    temporal_compression: int = 4  # pixel frames per latent frame after the first
    needs_control: bool = False  # the model cannot do without its control channels
    sigmas: tuple[
        float, ...
    ] = ()  # of the steps, where they are not the host's "simple" ones at this shift
    first_chunk_steps: int = 0  # of the first new chunk, where it takes more
    context_noise: float = 0.0  # sigma of the clean pass
    loop: str = "chunks"  # trained for: chunk after chunk, or one of OWN_LOOPS
    noisy_history: bool = (
        False  # trained to read history at any noise level, as FlashForward's renderer does
    )
    note: str = ""  # what a user must know: where our loop is not the one it was trained for

    def __post_init__(self):
        for name, least in LEAST.items():
            if not getattr(self, name) >= least:  # so that NaN is none
                raise ValueError(
                    f"An AR profile's {name} is {getattr(self, name)}. Use at least {least}."
                )

    def policy(self) -> KVPolicy:
        """What the sampler uses when no KV policy is connected."""
        if self.loop in OWN_LOOPS:
            return KVPolicy(schedule=OWN_LOOPS[self.loop](self.window_frames))
        retention = (
            SinkWindow(self.sink_frames, self.window_frames, self.sink_rope)
            if self.window_frames
            else FullKV()
        )
        return KVPolicy(retention, schedule=CleanPass(self.context_noise))

    def take_sigmas(self, model_sampling, steps: int = 0) -> Tensor:
        """Noise levels of a chunk's steps and then 0, `[steps + 1]`; `steps` 0: as many as the
        model was trained for.
        """
        if steps < 0:
            raise ValueError(
                f"steps is {steps}. Use at least 1, or 0 for as many as the model was trained for."
            )
        if self.sigmas and steps in (0, len(self.sigmas)):
            return torch.tensor([*self.sigmas, 0.0])
        # At shift s, "simple" gives s u / (1 + (s - 1) u) at u = 1, 1 - 1/n, ...: Self-Forcing's
        # warped list [1000, 750, 500, 250].
        return comfy.samplers.calculate_sigmas(model_sampling, "simple", steps or self.steps)

    def describe(self) -> str:
        first = f" ({self.first_chunk_steps} in the first chunk)" if self.first_chunk_steps else ""
        memory = (
            f"window {self.window_frames}, sink {self.sink_frames}"
            if self.window_frames
            else "all frames kept"
        )
        return f"chunks of {counted(self.chunk_frames, 'latent frame')}, {counted(self.steps, 'step')}{first}, shift {self.shift:g}, {memory}"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ARProfile":
        known = {field.name for field in fields(cls)}
        told = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in json.loads(text).items()
        }
        return cls(**{key: value for key, value in told.items() if key in known})


@dataclass(frozen=True)
class Checkpoint:
    """A published checkpoint. Its weights look like any other's of its size, so a file of it is
    known by its name.
    """

    profile: ARProfile
    name_has: tuple[
        str, ...
    ]  # patterns, all found in the file's name, in lower case and with "-" for what is no letter or digit
    source: str  # where the weights are
    licence: str  # of the weights, as far as their page says
    width: int = 1536  # of the transformer
    channels: int = 16  # of its latents
    ema: bool = True  # of the two sets of weights in a training file, the averaged one
    lora: str = ""  # a file of its own that belongs on it


WITHOUT_POLICY = (
    "Keepsake does so when no KV policy is connected; a connected one goes by its own schedule."
)

# Chunk, steps, shift, window and sink are those of the authors' configurations. "No limit" there
# means the 21 latent frames of training, which a window of 21 reads too. Of the rows whose patterns
# a name meets, the first with the file's width and channels is it.
CHECKPOINTS = (
    Checkpoint(
        ARProfile("Self-Forcing (chunk-wise)", chunk_frames=3, window_frames=21),
        (r"self-?forcing(?!-?plus|\+)",),
        "huggingface.co/gdhe17/Self-Forcing",
        "Apache-2.0",
    ),
    Checkpoint(
        ARProfile("Causal-Forcing (chunk-wise)", chunk_frames=3, window_frames=21),
        (r"causal-?forcing", r"chunk-?wise(?!.*long-?video)"),
        "huggingface.co/zhuhz22/Causal-Forcing",
        "Apache-2.0",
        ema=False,
    ),
    Checkpoint(
        ARProfile("Causal-Forcing (frame-wise)", chunk_frames=1, window_frames=21),
        (r"causal-?forcing", r"frame-?wise(?!-?[12]-?step)"),
        "huggingface.co/zhuhz22/Causal-Forcing",
        "Apache-2.0",
    ),
    Checkpoint(
        ARProfile("LongLive 1.3B", chunk_frames=3, window_frames=12, sink_frames=3),
        (r"^(?!.*(self|causal)-?forcing).*long-?live",),
        "huggingface.co/Efficient-Large-Model/LongLive-1.3B",
        "see its page",
        ema=False,
        lora="lora.pt",
    ),
    Checkpoint(
        ARProfile(
            "LongLive 2 5B",
            chunk_frames=8,
            window_frames=32,
            sink_frames=8,
            sigmas=(1.0, 0.946, 0.854, 0.681),
        ),
        (r"long-?live",),
        "huggingface.co/Efficient-Large-Model/LongLive-2.0-5B",
        "see its page",
        width=3072,
        channels=48,
    ),
    Checkpoint(
        ARProfile(
            "Causal-Forcing++ 1-step (frame-wise)",
            chunk_frames=1,
            steps=1,
            window_frames=21,
            first_chunk_steps=4,
        ),
        (r"(^|causal-?forcing.*-)frame-?wise-?1-?step",),
        "huggingface.co/zhuhz22/Causal-Forcing",
        "Apache-2.0",
    ),
    Checkpoint(
        ARProfile(
            "Causal-Forcing++ 2-step (frame-wise)",
            chunk_frames=1,
            steps=2,
            window_frames=21,
            first_chunk_steps=4,
        ),
        (r"(^|causal-?forcing.*-)frame-?wise-?2-?step",),
        "huggingface.co/zhuhz22/Causal-Forcing",
        "Apache-2.0",
    ),
    Checkpoint(
        ARProfile(
            "Causal-Forcing long video",
            chunk_frames=3,
            steps=5,
            window_frames=21,
            sink_frames=3,
            sink_rope="shifted",
            loop="rolling",
            note="Causal-Forcing's long video model denoises five chunks together, at rising "
            f"noise. {WITHOUT_POLICY}",
        ),
        (r"causal-?forcing|chunk-?wise", r"long-?video"),
        "huggingface.co/zhuhz22/Causal-Forcing",
        "Apache-2.0",
    ),
    Checkpoint(
        ARProfile(
            "Rolling Forcing",
            chunk_frames=3,
            steps=5,
            window_frames=21,
            sink_frames=3,
            sink_rope="shifted",
            loop="rolling",
            note="Rolling Forcing denoises five chunks together, at rising noise. "
            f"{WITHOUT_POLICY}",
        ),
        (r"rolling-?forcing",),
        "huggingface.co/TencentARC/RollingForcing",
        "academic use only",
    ),
    Checkpoint(
        ARProfile(
            "HiAR",
            chunk_frames=3,
            window_frames=21,
            loop="hierarchical",
            note="HiAR takes all chunks through a step before the next step, over a history as "
            f"noisy as they are. {WITHOUT_POLICY}",
        ),
        (r"\bhiar\b",),
        "huggingface.co/jackyhate/HiAR",
        "Apache-2.0",
    ),
    Checkpoint(
        ARProfile("RAVEN", chunk_frames=3, window_frames=21),
        (r"\braven\b",),
        "huggingface.co/mvp-lab/RAVEN",
        "see its page",
    ),
    Checkpoint(
        ARProfile(
            "Krea Realtime 14B",
            chunk_frames=3,
            window_frames=6,
            loop="recompute",
            note="Krea Realtime computes its cache anew before each chunk, from the first frame "
            "and the last two, which is Krea's "
            "option keep_first_frame. Without it Krea's server goes on with its latest pictures, "
            "encoded anew, in the first "
            "frame's place; Keepsake has no VAE at hand and always keeps the first frame. "
            f"{WITHOUT_POLICY}",
        ),
        (r"\bkrea\b",),
        "huggingface.co/krea/krea-realtime-video",
        "CC BY-NC-SA 4.0",
        width=5120,
    ),
    Checkpoint(
        ARProfile("FastVideo Self-Forcing 1.3B", chunk_frames=3, window_frames=21),
        (r"\bsfwan2-1\b",),
        "huggingface.co/wlsaidhi/SFWan2.1-T2V-1.3B-Diffusers",
        "Apache-2.0",
    ),
)
PROFILES = {row.profile.name: row.profile for row in CHECKPOINTS}

# stages of training that the authors publish as well; none is made for a few steps
UNFINISHED = r"\b(ode|cd|init|ar-diffusion)\b"
# Named like files that cannot be rolled out at all.
NO_AR_MODEL = {
    r"(?<!sf)wan-?2-?[12]-(t2v|i2v|ti2v|flf2v)": "Wan's own bidirectional model, which was never "
    "trained to be rolled out and gives a broken "
    "video in chunks. Load a checkpoint that was made for it (Self-Forcing, Causal-Forcing, "
    "LongLive "
    "...), or choose a profile if this is one",
    r"\bsfwan2-2\b": "one of the two experts of FastVideo's SFWan2.2, which take turns in every "
    "chunk; Keepsake runs one model. "
    "Load a checkpoint of one model, or choose a profile to use this expert alone",
}


def rows_named(name: str) -> list[Checkpoint]:
    """Rows that a file's name can mean; where it does not tell, with its folder's, and so on
    upwards.
    """
    for told in _nearest_first(name):
        rows = [
            row for row in CHECKPOINTS if all(re.search(pattern, told) for pattern in row.name_has)
        ]
        if re.search(UNFINISHED, told) or not rows and why_no_ar_model(told):
            return []
        if rows:
            return rows
    return []


def why_no_ar_model(name: str) -> str | None:
    return next(
        (
            why
            for told in _nearest_first(name)
            for pattern, why in NO_AR_MODEL.items()
            if re.search(pattern, told)
        ),
        None,
    )


def _nearest_first(name: str) -> Iterator[str]:
    """The file's name, then with one folder more each time, in the form that patterns are written
    for.
    """
    parts = re.split(r"[\\/]", name.lower())
    for count in range(1, len(parts) + 1):
        yield re.sub(r"[^a-z0-9+]+", "-", "/".join(parts[-count:]))


def profile_of(model_options: dict) -> ARProfile | None:
    return model_options.get("transformer_options", {}).get(PROFILE)


def with_profile(model, profile: ARProfile):
    """Give a profile to a clone of a MODEL, and its shift by the host's own node."""
    from comfy_extras.nodes_model_advanced import ModelSamplingSD3

    model = ModelSamplingSD3().patch(model, profile.shift)[0] if profile.shift else model.clone()
    model.model_options["transformer_options"][PROFILE] = profile
    return model
