"""A MODEL that the host has cloned onto several devices: which lane of a schedule runs where, by
the host's own clones and threads.
"""

from collections import defaultdict
from functools import partial

import torch
from torch import Tensor

from ...kv_policies import Chunk, Geometry, KVPolicy, Take
from ...kv_policies.words import title_of
from ...rollout.walk import Worker, spread
from .conditioning import has_hooks
from .roles import guider_of_role


def lanes_of(model, policy: KVPolicy, chunks: list[Chunk], steps: int) -> dict[str, torch.device]:
    """The device of each lane; none for a MODEL on one device. ValueError, in a sentence, where the
    schedule has nothing to run side by side.
    """
    clones = model.get_additional_models_with_key("multigpu")
    devices = [model.load_device, *(clone.load_device for clone in clones)]
    if len(devices) == 1:
        return {}
    graph = policy.schedule.graph(chunks, steps)
    if not graph:
        raise ValueError(
            f"{title_of(policy.schedule)} runs one forward after another, on one device, and "
            "this MODEL is spread over "
            f"{len(devices)}. Use a schedule that runs side by side (KV Policy: FlashForward "
            "Anchors), or bypass the multi-GPU node."
        )
    return {lane: devices[number] for lane, number in spread(graph, len(devices)).items()}


def roles_of_lanes(policy: KVPolicy, geometry: Geometry, take: Take) -> dict[str, str | None]:
    """The role that makes the forwards of each lane."""
    schedule = policy.schedule
    caches = schedule.caches(policy.retention, geometry, take)
    return {schedule.lane(cache): schedule.role_of(cache) for cache in caches}


def check_lanes(
    lanes: dict[str, torch.device], policy: KVPolicy, roles: dict[str, str | None], guider
):
    """Raise ValueError, in a sentence, for what cannot be spread over devices. `roles` by lane."""
    devices_of_role = defaultdict(list)
    for lane, device in lanes.items():
        devices_of_role[roles[lane]].append(device)
    for role in policy.models:
        devices = devices_of_role[role]
        if any(device != guider.model_patcher.load_device for device in devices):
            raise ValueError(
                f"The MODEL is spread over several devices, and {role}_model is not. Connect the "
                f"{role}'s model, behind the multi-GPU "
                f"node, to the sampler, and leave {role}_model open."
            )
        if devices and list(lanes.values()).count(devices[0]) > 1:
            raise ValueError(
                f"The {role}_model would take turns with a step on one device. Spread the MODEL "
                f"over {len(lanes)} devices, one for each "
                f"step and one for the {role}, or bypass the multi-GPU node."
            )
    if lanes and has_hooks(guider):
        raise ValueError(
            "A conditioning with hooks changes weights while the take runs, and this MODEL's are "
            "on several devices. "
            "Remove the hooks, or bypass the multi-GPU node."
        )


def guiders_of_lanes(
    guider,
    lanes: dict[str, torch.device],
    sigmas: Tensor,
    noise: Tensor,
    latent_image: Tensor | None,
    seed: int | None,
) -> dict:
    """The take's guider over the host's clone, for each lane that does not run on the take's own
    device.
    """
    clones = guider.model_options.get("multigpu_clones", {})  # which the host has loaded
    others = dict.fromkeys(lanes.values())
    others.pop(guider.model_patcher.load_device, None)
    guiders = {
        device: guider_of_role(clones[device], guider, sigmas, noise, latent_image, seed)
        for device in others
    }
    return {lane: guiders[device] for lane, device in lanes.items() if device in guiders}


def workers_of_lanes(guider, lanes: dict[str, torch.device]) -> dict[str, Worker]:
    """The host's thread of each lane's device."""
    pool = guider.model_options.get("multigpu_thread_pool")

    def start(device, work):
        pool.submit(device, work)
        return partial(pool.get_result, device)

    # One worker for each device, also where several lanes run on it.
    workers = {device: partial(start, device) for device in lanes.values()}
    return {lane: workers[device] for lane, device in lanes.items()}
