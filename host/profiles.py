"""AR profiles: how a checkpoint was trained to be rolled out. A profile travels on the MODEL as data."""
import json
from dataclasses import asdict, dataclass, fields

from ..kv_policies import FullKV, KVPolicy, SinkWindow

PROFILE = "keepsake_profile"         # key in transformer_options, and in the header of a safetensors file


@dataclass(frozen=True)
class ARProfile:
    """Numbers a chunk-wise model was trained with; frames are latent frames."""

    name: str = "none"
    chunk_frames: int = 3
    steps: int = 4
    shift: float = 5.0               # of the flow schedule; 0 leaves the model's own
    window_frames: int = 0           # chunk in work included; 0: all frames
    sink_frames: int = 0
    sink_rope: str = "absolute"
    temporal_compression: int = 4    # pixel frames per latent frame after the first
    needs_control: bool = False      # the model cannot do without its control channels

    def policy(self) -> KVPolicy:
        """What the sampler uses when no KV policy is connected."""
        if self.window_frames == 0:
            return KVPolicy(FullKV())
        return KVPolicy(SinkWindow(self.sink_frames, self.window_frames, self.sink_rope))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ARProfile":
        known = {field.name for field in fields(cls)}
        return cls(**{key: value for key, value in json.loads(text).items() if key in known})


# Steps, shift, window and sink of the authors' configurations. LongLive 1.3B is its base with its LoRA on it.
PROFILES = {profile.name: profile for profile in (
    ARProfile("Self-Forcing (chunk-wise)", chunk_frames=3, window_frames=21),
    ARProfile("Causal-Forcing (chunk-wise)", chunk_frames=3, window_frames=21),
    ARProfile("Causal-Forcing (frame-wise)", chunk_frames=1, window_frames=21),
    ARProfile("LongLive 1.3B", chunk_frames=3, window_frames=12, sink_frames=3),
    ARProfile("LongLive 2 5B", chunk_frames=8, window_frames=32, sink_frames=8),
)}


def profile_of(model_options: dict) -> ARProfile | None:
    return model_options.get("transformer_options", {}).get(PROFILE)


def with_profile(model, profile: ARProfile):
    """Give a profile to a clone of a MODEL, and its shift by the host's own node."""
    from comfy_extras.nodes_model_advanced import ModelSamplingSD3

    model = ModelSamplingSD3().patch(model, profile.shift)[0] if profile.shift else model.clone()
    model.model_options["transformer_options"][PROFILE] = profile
    return model
