"""Inputs that more than one node has."""

from comfy_api.latest import io

from ..kv_policies.retention.reindex import BANDS, REINDEX
from ..kv_policies.retention.token_prune import TokenPrune
from .sockets import ControlSocket, KVMemorySocket, KVPolicySocket


def policy_to_use():
    return KVPolicySocket.Input(
        "kv_policy",
        optional=True,
        tooltip="What to keep of the past. Open: the model's profile decides.",
    )


def seed_input():
    return io.Int.Input(
        "seed", default=0, min=0, max=0xFFFFFFFFFFFFFFFF, control_after_generate=True
    )


def steps_input():
    return io.Int.Input(
        "steps",
        default=0,
        min=0,
        max=100,
        tooltip="Denoising steps of a chunk; 0 takes the model's profile.",
    )


def cfg_input(tooltip: str):
    return io.Float.Input("cfg", default=1.0, min=0.0, max=100.0, step=0.1, tooltip=tooltip)


def file_name_input(default: str, folder: str):
    """Of a file that the node writes into the output folder's `folder`."""
    return io.String.Input(
        "name", default=default, tooltip=f"File name in output/{folder}; a number is added."
    )


def prefix_input():
    return io.Latent.Input(
        "prefix",
        optional=True,
        tooltip="Given latents that the take begins with (a start image or an earlier clip). They "
        "count in its length.",
    )


def control_input():
    return ControlSocket.Input(
        "control",
        optional=True,
        tooltip="Per-frame control, for models that follow one (Demo World Camera).",
    )


def chunk_frames_input():
    return io.Int.Input(
        "chunk_frames",
        default=0,
        min=0,
        max=64,
        tooltip="Latent frames denoised together; 0 takes the model's profile.",
    )


def drop_given_input():
    return io.Boolean.Input(
        "drop_given",
        default=False,
        optional=True,
        tooltip="Output the new latents alone. Decoded by themselves they begin with a single "
        "pixel frame and a new VAE state, so the join shows: for one without a seam decode "
        "everything, then drop the first 1 + 4 (given latents - 1) pictures.",
    )


def stop_after_input():
    return io.Int.Input(
        "stop_after",
        default=0,
        min=0,
        max=0x7FFFFFFF,
        optional=True,
        tooltip="Stop with the chunk that reaches this latent frame of the take; 0 makes all of "
        "it.",
    )


def memory_input():
    return KVMemorySocket.Input(
        "kv_memory",
        optional=True,
        tooltip="Carry on from here, with the same model, policy, seed, steps and size; the "
        "prompt may change.",
    )


def target_keep_input(tooltip: str):
    """Of a method that prunes tokens."""
    return io.Float.Input(
        "target_keep",
        default=TokenPrune.target_keep,
        min=0.0,
        max=1.0,
        step=0.01,
        tooltip=tooltip,
    )


def whole_chunks_inputs():
    """Of a method that prunes tokens: the chunks that stay whole."""
    return [
        io.Int.Input(
            "dense_chunks",
            default=TokenPrune.dense_chunks,
            min=1,
            max=1024,
            tooltip="Latest chunks that stay whole; frame-wise models count 3 frames as one.",
        ),
        io.Int.Input(
            "sink_chunks",
            default=TokenPrune.sink_chunks,
            min=0,
            max=1024,
            tooltip="First chunks that stay whole; frame-wise models count 3 frames as one.",
        ),
    ]


def reindex_inputs():
    """Of a method that prunes tokens: how positions are squeezed."""
    return [
        io.Combo.Input(
            "reindex",
            options=list(REINDEX),
            default=TokenPrune.reindex,
            tooltip="auto: squeeze the places in time of given frames once, where new ones begin. "
            "periodic (ours): do so again as the take grows.",
        ),
        io.Int.Input(
            "virtual_length",
            default=TokenPrune.virtual_length,
            min=1,
            max=4096,
            tooltip="Latent frames into which the re-index squeezes the past.",
        ),
        io.Int.Input(
            "reindex_recent",
            default=TokenPrune.reindex_recent,
            min=0,
            max=4096,
            tooltip="Latest of these, which keep their places.",
        ),
    ]


def bound_inputs():
    """Of a method that prunes tokens: a bound, and what a re-index turns. Optional, so behind the
    sockets.
    """
    return [
        io.Int.Input(
            "most_frames",
            default=TokenPrune.most_frames,
            min=0,
            max=1048576,
            optional=True,
            tooltip="Bound for endless takes (ours): so many latent frames' worth of tokens stay "
            "before the dense chunks, and what scored lowest leaves first. 0: no bound.",
        ),
        io.Combo.Input(
            "reindex_bands",
            options=list(BANDS),
            default=TokenPrune.reindex_bands,
            optional=True,
            tooltip="Which of a key's turns in time the re-index changes: all, or the faster half "
            "(the authors' fast_bands).",
        ),
    ]
