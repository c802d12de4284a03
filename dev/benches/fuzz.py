"""Broken memory files: mutated bytes, headers and tensors, read and checked as a sampler would
before it samples.

`own_errors` are refusals in a sentence, `other_errors` anything else that came out; `mib_grown` is
what reading them all added to the process.
"""

import random
import resource
import tempfile
from pathlib import Path

import _common as common

args = common.start(__doc__, inputs={"type": int, "default": 12000, "help": "broken files"})


def main():
    import comfy.samplers
    import torch
    from keepsake.host.take.planning import plan_take
    from keepsake.host.take.request import TakeRequest
    from keepsake.host.take.sampling_call import SamplingCall
    from keepsake.kv_policies import (
        DeCoPrune,
        DirectedForcing,
        FlashForward,
        KVMemoryError,
        KVPolicy,
        RollingForcing,
        SinkWindow,
    )
    from keepsake.rollout.memory_file import load_memory, save_memory
    from support import mutate, tiny

    model, draw = tiny.prepared(tiny.tiny_model(layers=2, dim=32, heads=2)), random.Random(1)
    noise, sigmas = tiny.noise_of(8, 4, 4), torch.tensor([1.0, 0.8, 0.5, 0.0])
    policies = [
        KVPolicy(SinkWindow(2, 6, "shifted")),
        KVPolicy(DeCoPrune(gamma=0.5), DirectedForcing(active_from=4)),
        KVPolicy(schedule=FlashForward(anchor_stride=3, block_anchors=1)),
        KVPolicy(schedule=RollingForcing(15)),
    ]
    path, counts, strange = (
        Path(tempfile.mkdtemp()) / "memory.safetensors",
        {"own_errors": 0, "loads": 0, "other_errors": 0},
        [],
    )
    inputs = 600 if args.quick else args.inputs
    before = None
    for policy in policies:
        memories = []
        tiny.guide(
            model,
            tiny.sampler(
                policy, 2, stop_after=4, on_stats=lambda stats: None, on_memory=memories.append
            ),
            noise,
            sigmas=sigmas,
        )
        save_memory(memories[0], path)
        guider = comfy.samplers.CFGGuider(model)
        guider.set_conds(tiny.prompt(1), tiny.prompt(2))
        guider.set_cfg(1.0)
        guider.conds = guider.original_conds
        for data in mutate.mutations(path.read_bytes(), draw, inputs // len(policies)):
            path.write_bytes(data)
            try:
                request = TakeRequest(policy=policy, chunk_frames=2, memory=load_memory(path))
                plan_take(guider, SamplingCall.of(guider, noise.shape, sigmas, 11), request)
                counts["loads"] += 1
            except KVMemoryError:
                counts["own_errors"] += 1
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                counts["other_errors"] += 1
                strange.append(repr(error)[:200])
            before = before or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    common.report(
        "fuzz",
        [
            {
                "inputs": sum(counts.values()),
                **counts,
                "mib_grown": grown,
                "file_mib": len(data) / 2**20,
            }
        ],
        strange=strange[:20],
    )


main()
