"""The table of published checkpoints: the profile of each, and what its files are known by."""

from dataclasses import dataclass

from .flow import integer_steps
from .profiles import ARProfile


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A published checkpoint. Its weights look like any other's of its size, so a file of it is
    recognised by its name.
    """

    profile: ARProfile
    # Patterns that are all found in the file's name, as `file_names` reads it.
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
