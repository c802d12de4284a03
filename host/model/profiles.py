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
from .flow import Step, flow_of, integer_steps

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


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A published checkpoint. Its weights look like any other's of its size, so a file of it is
    recognised by its name.
    """

    profile: ARProfile
    # Patterns that are all found in the file's name, as `_nearest_first` writes it.
    name_has: tuple[str, ...]
    source: str  # where the weights are
    licence: str  # of the weights, as far as their page says
    width: int = 1536  # of the transformer
    channels: int = 16  # of its latents
    ema: bool = True  # whether to read the averaged one of a training file's two sets of weights
    lora: str = ""  # a file of its own that belongs on it
    kind: str = ""  # its kind, where that is none of the host's (`kinds.Kind.name`)


WITHOUT_POLICY = (
    "Keepsake does so when no KV policy is connected; a connected one goes by its own schedule."
)

LINGBOT_V2 = dict(
    name_has=(r"lingbot-?world-?v2.*fast",),
    source="huggingface.co/robbyant/lingbot-world-v2-14b-causal-fast",
    licence="CC BY-NC-SA 4.0: no commercial use, and what is made from the weights under the same",
    width=5120,
    kind="LingBot-World",
)
LINGBOT = (
    Checkpoint(
        profile=ARProfile(
            name="LingBot-World v2",
            chunk_frames=4,
            shift=10.0,
            window_frames=18,
            sink_frames=6,
            table=integer_steps(10.0, (0, 250, 500, 750)),
        ),
        **LINGBOT_V2,
    ),
    Checkpoint(  # chosen, not recognised: the same file, as CMBench calls the authors' function
        profile=ARProfile(
            name="LingBot-World v2 (CMBench)",
            chunk_frames=4,
            shift=5.0,
            table=integer_steps(5.0, (0, 179, 358, 679)),
        ),
        **LINGBOT_V2,
    ),
    Checkpoint(
        profile=ARProfile(
            name="LingBot-World v1 fast",
            chunk_frames=3,
            shift=10.0,
            window_frames=21,
            table=integer_steps(10.0, (0, 179, 358, 679)),
        ),
        name_has=(r"lingbot-?world(-v1)?-?fast",),
        source="huggingface.co/robbyant/lingbot-world-fast",
        licence="Apache-2.0",
        width=5120,
        kind="LingBot-World",
    ),
)

MATRIX_GAME_SIGMAS = (1.0, 0.9088428, 0.7139794)  # 1, 0.666 and 0.333 at a shift of 5
MATRIX_GAME = tuple(  # told apart by their tensors, see `kinds.Kind.profile`
    Checkpoint(
        profile=ARProfile(name=f"Matrix-Game 2 {mode}", chunk_frames=3, **numbers),
        name_has=(r"matrix-?game-?2", mode.replace("_", "-?")),
        source="huggingface.co/Skywork/Matrix-Game-2.0",
        licence="MIT",
        kind="Matrix-Game 2",
    )
    for mode, numbers in {
        "universal": dict(steps=3, sigmas=MATRIX_GAME_SIGMAS, window_frames=6),
        "gta_drive": dict(steps=3, sigmas=MATRIX_GAME_SIGMAS, window_frames=4, whole_chunks=False),
        "templerun": dict(steps=4, window_frames=6),
    }.items()
)

# Chunk, steps, shift, window and sink are those of the authors' configurations. "No limit" there
# means the 21 latent frames of training, which a window of 21 reads too. A file is the first row
# whose patterns its name matches and whose width and channels it has.
CHECKPOINTS = (
    Checkpoint(
        profile=ARProfile(name="Self-Forcing (chunk-wise)", chunk_frames=3, window_frames=21),
        name_has=(r"self-?forcing(?!-?plus|\+)",),
        source="huggingface.co/gdhe17/Self-Forcing",
        licence="Apache-2.0",
    ),
    Checkpoint(
        profile=ARProfile(name="Causal-Forcing (chunk-wise)", chunk_frames=3, window_frames=21),
        name_has=(r"causal-?forcing", r"chunk-?wise(?!.*long-?video)"),
        source="huggingface.co/zhuhz22/Causal-Forcing",
        licence="Apache-2.0",
        ema=False,
    ),
    Checkpoint(
        profile=ARProfile(name="Causal-Forcing (frame-wise)", chunk_frames=1, window_frames=21),
        name_has=(r"causal-?forcing", r"frame-?wise(?!-?[12]-?step)"),
        source="huggingface.co/zhuhz22/Causal-Forcing",
        licence="Apache-2.0",
    ),
    Checkpoint(
        profile=ARProfile(
            name="LongLive 1.3B",
            chunk_frames=3,
            window_frames=12,
            sink_frames=3,
            recache="together",
        ),
        name_has=(r"^(?!.*(self|causal)-?forcing).*long-?live",),
        source="huggingface.co/Efficient-Large-Model/LongLive-1.3B",
        licence="see its page",
        ema=False,
        lora="lora.pt",
    ),
    Checkpoint(
        profile=ARProfile(
            name="LongLive 2 5B",
            chunk_frames=8,
            window_frames=32,
            sink_frames=8,
            sigmas=(1.0, 0.946, 0.854, 0.681),
        ),
        name_has=(r"long-?live",),
        source="huggingface.co/Efficient-Large-Model/LongLive-2.0-5B",
        licence="see its page",
        width=3072,
        channels=48,
    ),
    Checkpoint(
        profile=ARProfile(
            name="Causal-Forcing++ 1-step (frame-wise)",
            chunk_frames=1,
            steps=1,
            window_frames=21,
            first_chunk_steps=4,
        ),
        name_has=(r"(^|causal-?forcing.*-)frame-?wise-?1-?step",),
        source="huggingface.co/zhuhz22/Causal-Forcing",
        licence="Apache-2.0",
    ),
    Checkpoint(
        profile=ARProfile(
            name="Causal-Forcing++ 2-step (frame-wise)",
            chunk_frames=1,
            steps=2,
            window_frames=21,
            first_chunk_steps=4,
        ),
        name_has=(r"(^|causal-?forcing.*-)frame-?wise-?2-?step",),
        source="huggingface.co/zhuhz22/Causal-Forcing",
        licence="Apache-2.0",
    ),
    Checkpoint(
        profile=ARProfile(
            name="Causal-Forcing long video",
            chunk_frames=3,
            steps=5,
            window_frames=21,
            sink_frames=3,
            sink_rope="shifted",
            loop="rolling",
            note="Causal-Forcing's long video model denoises five chunks together, at rising "
            f"noise. {WITHOUT_POLICY}",
        ),
        name_has=(r"causal-?forcing|chunk-?wise", r"long-?video"),
        source="huggingface.co/zhuhz22/Causal-Forcing",
        licence="Apache-2.0",
    ),
    Checkpoint(
        profile=ARProfile(
            name="Rolling Forcing",
            chunk_frames=3,
            steps=5,
            window_frames=21,
            sink_frames=3,
            sink_rope="shifted",
            loop="rolling",
            note="Rolling Forcing denoises five chunks together, at rising noise. "
            f"{WITHOUT_POLICY}",
        ),
        name_has=(r"rolling-?forcing",),
        source="huggingface.co/TencentARC/RollingForcing",
        licence="academic use only",
    ),
    Checkpoint(
        profile=ARProfile(
            name="HiAR",
            chunk_frames=3,
            window_frames=21,
            loop="hierarchical",
            note="HiAR takes all chunks through a step before the next step, over a history as "
            f"noisy as they are. {WITHOUT_POLICY}",
        ),
        name_has=(r"\bhiar\b",),
        source="huggingface.co/jackyhate/HiAR",
        licence="Apache-2.0",
    ),
    Checkpoint(
        profile=ARProfile(name="RAVEN", chunk_frames=3, window_frames=21),
        name_has=(r"\braven\b",),
        source="huggingface.co/mvp-lab/RAVEN",
        licence="see its page",
    ),
    Checkpoint(
        profile=ARProfile(
            name="Krea Realtime 14B",
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
        name_has=(r"\bkrea\b",),
        source="huggingface.co/krea/krea-realtime-video",
        licence="CC BY-NC-SA 4.0",
        width=5120,
    ),
    Checkpoint(
        profile=ARProfile(name="FastVideo Self-Forcing 1.3B", chunk_frames=3, window_frames=21),
        name_has=(r"\bsfwan2-1\b",),
        source="huggingface.co/wlsaidhi/SFWan2.1-T2V-1.3B-Diffusers",
        licence="Apache-2.0",
    ),
    Checkpoint(
        profile=ARProfile(
            name="Reward Forcing 1.3B",
            chunk_frames=3,
            window_frames=9,
            sink_frames=3,
            sink_rope="shifted",
            sink_weight=0.999,
        ),
        name_has=(r"reward-?forcing",),
        source="huggingface.co/JaydenLu666/Reward-Forcing-T2V-1.3B",
        licence="see its page",
    ),
    *LINGBOT,
    *MATRIX_GAME,
)
PROFILES = {row.profile.name: row.profile for row in CHECKPOINTS}

# Stages of training that the authors publish as well; none is made for a few steps.
UNFINISHED = r"\b(ode-init|ode|cd|init|ar-diffusion|causal-pretrain)\b"
# Names of files that cannot be rolled out at all, and what they are.
NO_AR_MODEL = {
    r"(?<!sf)wan-?2-?[12]-(t2v|i2v|ti2v|flf2v)": "Wan's own bidirectional model, which was never "
    "trained to be rolled out and gives a broken "
    "video in chunks. Load a checkpoint that was made for it (Self-Forcing, Causal-Forcing, "
    "LongLive "
    "...), or choose a profile if this is one",
    r"lingbot-?world.*base": "LingBot-World's bidirectional model, from which the fast ones were "
    "made and which gives a broken video in chunks. Load lingbot-world-fast or "
    "lingbot-world-v2-14b-causal-fast, or choose a profile if this is one",
    r"matrix-?game.*(foundation|base-model)": "Matrix-Game 2's foundation model, from which the "
    "distilled ones were made and which gives a broken video in a few steps. Load base_distill, "
    "gta_keyboard2dim or templerun_7dim_onlykey, or choose a profile if this is one",
    r"\bsfwan2-2\b": "one of the two experts of FastVideo's SFWan2.2, which take turns in every "
    "chunk; Keepsake runs one model. "
    "Load a checkpoint of one model, or choose a profile to use this expert alone",
}


def rows_named(name: str) -> list[Checkpoint]:
    """Rows that a file's name matches; where none does, that its folder and name match together,
    and so on upwards.
    """
    for path in _nearest_first(name):
        rows = [
            row for row in CHECKPOINTS if all(re.search(pattern, path) for pattern in row.name_has)
        ]
        if re.search(UNFINISHED, path) or not rows and why_no_ar_model(path):
            return []
        if rows:
            return rows
    return []


def why_no_ar_model(name: str) -> str | None:
    """What a file is by its name, where that cannot be rolled out; else None."""
    for path in _nearest_first(name):
        if stage := re.search(UNFINISHED, path):
            return (
                f"an unfinished stage of training ('{stage[0]}'), from which the model of a few "
                "steps is trained and which itself gives a broken video. Load the finished "
                "checkpoint, or choose a profile if this is one"
            )
        for pattern, why in NO_AR_MODEL.items():
            if re.search(pattern, path):
                return why
    return None


def _nearest_first(name: str) -> Iterator[str]:
    """The file's name, then with one folder more each time; in lower case, with "-" for everything
    that is no letter, digit or "+".
    """
    parts = re.split(r"[\\/]", name.lower())
    for count in range(1, len(parts) + 1):
        yield re.sub(r"[^a-z0-9+]+", "-", "/".join(parts[-count:]))


def profile_of(model_options: dict) -> ARProfile | None:
    return model_options.get("transformer_options", {}).get(PROFILE)


def with_profile(model, profile: ARProfile):
    """Give a profile, and its shift, to a clone of a MODEL."""
    model = model.clone()
    if profile.shift:
        model.add_object_patch("model_sampling", flow_of(model, profile.shift, profile.table))
    model.model_options["transformer_options"][PROFILE] = profile
    return model
