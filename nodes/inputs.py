"""Inputs that more than one node has."""

from comfy_api.latest import io

from .sockets import ControlSocket, KVMemorySocket, KVPolicySocket


def policy_to_use():
    return KVPolicySocket.Input(
        "kv_policy",
        optional=True,
        tooltip="What to keep of the past. Open: the model's profile decides.",
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
