"""A program: load the pack into a ComfyUI that has started, as the host does, and print what it
brought in, said and changed.
"""

import asyncio
import atexit
import gc
import logging
import mimetypes
import os
import random
import signal
import sys
import threading
import warnings

from support import pack

pack.use_host("--cpu")
import utils.extra_config  # noqa: F401  first, as in main.py: `nodes` puts comfy/ on sys.path, where another `utils` lies

HOST = (
    "comfy",
    "comfy_api",
    "comfy_execution",
    "execution",
    "folder_paths",
    "latent_preview",
    "node_helpers",
    "nodes",
    "server",
    "torch",
)
import comfy.samplers
import comfy.sd
import comfy_api.latest  # noqa: F401
import folder_paths
import latent_preview  # noqa: F401
import numpy
import server
import torch

import nodes


def settings() -> dict:
    """What a process has one of, by name."""
    loggers = [
        logging.root,
        *(
            logger
            for logger in logging.root.manager.loggerDict.values()
            if isinstance(logger, logging.Logger)
        ),
    ]
    prompt_server = server.PromptServer.instance
    return {
        "torch": (
            torch.get_default_dtype(),
            torch.get_num_threads(),
            torch.get_num_interop_threads(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
            torch.backends.cudnn.benchmark,
            torch.is_autocast_enabled("cpu"),
            torch._C._len_torch_function_stack(),
            torch._C._len_torch_dispatch_stack(),
        ),
        "random numbers": (
            random.getstate(),
            repr(numpy.random.get_state()),
            torch.get_rng_state().tolist(),
        ),
        "warnings": (list(warnings.filters), warnings.showwarning),
        "logging": {
            logger.name: (
                logger.level,
                list(logger.handlers),
                list(logger.filters),
                logger.propagate,
                logger.disabled,
            )
            for logger in loggers
        },
        "imports": (list(sys.path), list(sys.meta_path), list(sys.path_hooks)),
        "process": (
            dict(os.environ),
            os.getcwd(),
            threading.enumerate(),
            atexit._ncallbacks(),
            gc.get_threshold(),
            gc.isenabled(),
            sys.excepthook,
            [signal.getsignal(number) for number in signal.valid_signals()],
        ),
        "MIME types": dict(mimetypes.types_map),
        "server": (list(prompt_server.routes), list(prompt_server.on_prompt_handlers)),
        "model folders": {
            kind: (list(places), set(ends))
            for kind, (places, ends) in folder_paths.folder_names_and_paths.items()
            if not kind.startswith("kv_")
        },  # ours, beside the others
        "host's lists": (
            list(comfy.samplers.SAMPLER_NAMES),
            list(comfy.samplers.SCHEDULER_NAMES),
            list(nodes.NODE_CLASS_MAPPINGS),
        ),
    }


def patched(members: dict) -> list[str]:
    return [
        f"{owner.__name__}.{name}"
        for owner, held in members.items()
        for name, part in held.items()
        if vars(owner).get(name) is not part
    ]


async def load():
    extension = await pack.load_pack().comfy_entrypoint()
    await extension.on_load()
    for node in await extension.get_node_list():
        node.GET_SCHEMA()


loop = asyncio.new_event_loop()
server.PromptServer(loop)
modules = [
    module
    for name, module in list(sys.modules.items())
    if name.split(".")[0] in HOST and hasattr(module, "__name__")
]
classes = [
    part
    for module in modules
    for part in list(vars(module).values())
    if issubclass(type(part), type) and part.__module__.split(".")[0] in HOST
]
members = {owner: dict(vars(owner)) for owner in [*modules, *classes]}
before, had, say = settings(), set(sys.modules), sys.stdout.write
sys.stdout.write = sys.stderr.write = lambda text: say(f"SAID {text}")
loop.run_until_complete(load())
after = settings()
say("NEW " + " ".join(sorted({name.split(".")[0] for name in set(sys.modules) - had})) + "\n")
say(
    "CHANGED "
    + " ".join([*(name for name in before if before[name] != after[name]), *patched(members)])
    + "\n"
)
