"""The nodes: schema, one call, return. They import the host's API and our rooms below; nothing
imports them.
"""

from comfy_api.latest import ComfyExtension, io

from . import (
    demo,
    estimate,
    heads,
    memory,
    model,
    policies,
    prompts,
    sampler,
    schedules,
    stats,
    storage,
    stream,
)

FILES = (
    model,
    *policies.FILES,
    schedules,
    heads,
    sampler,
    stats,
    estimate,
    storage,
    demo,
    prompts,
    memory,
    stream,
)


def nodes_in(file) -> list[type[io.ComfyNode]]:
    """The node classes that a file defines, in its order."""
    return [
        value
        for value in vars(file).values()
        if isinstance(value, type)
        and issubclass(value, io.ComfyNode)
        and value.__module__ == file.__name__
    ]


class KeepsakeExtension(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [node for file in FILES for node in nodes_in(file)]
