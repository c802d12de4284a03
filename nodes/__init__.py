"""The nodes: schema, one call, return. They import the host's API and our rooms below; nothing
imports them. Every node class in a file of this folder is a node of the pack.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

from comfy_api.latest import ComfyExtension, io


def node_classes() -> Iterator[type[io.ComfyNode]]:
    """By file, in the order of the classes in it."""
    for found in pkgutil.walk_packages(__path__, f"{__name__}."):
        file = importlib.import_module(found.name)
        for value in vars(file).values():
            if (
                inspect.isclass(value)
                and issubclass(value, io.ComfyNode)
                and value.__module__ == file.__name__
            ):
                yield value


NODES = list(node_classes())  # now: a host that lacks something is told so by the entry point


class KeepsakeExtension(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return NODES
