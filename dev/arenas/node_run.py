"""Runs nodes of a graph in API format without ComfyUI's server, each once, however many graphs have
it with the same inputs.
"""

import asyncio
import json
from functools import cache

from support import pack

Link = list  # [node's id, number of its output]


def is_link(value) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


@cache
def own_classes() -> dict[str, type]:
    return {kind.define_schema().node_id: kind for kind in pack.nodes()}


@cache
def class_of(name: str) -> type:
    """The class of a node: the pack's own, the host's, and only then one of other packs, which
    take their time to load. ValueError for one that is nowhere.
    """
    if name in own_classes():
        return own_classes()[name]
    import nodes as host_nodes

    for others in (None, False, True):
        if others is not None:
            asyncio.run(host_nodes.init_extra_nodes(init_custom_nodes=others, init_api_nodes=False))
        if name in host_nodes.NODE_CLASS_MAPPINGS:
            return host_nodes.NODE_CLASS_MAPPINGS[name]
    raise ValueError(
        f"The graph has a node {name}, which this ComfyUI does not know. Install the pack that has "
        "it, or take the node out."
    )


def inputs_of(name: str) -> dict[str, tuple[object, dict]]:
    """Each input of a node: its type, or the list of a choice's options, and its settings."""
    declared = class_of(name).INPUT_TYPES()
    inputs = {**declared.get("required", {}), **declared.get("optional", {})}
    whole = {key: (spec[0], dict(spec[1]) if len(spec) > 1 else {}) for key, spec in inputs.items()}
    return {
        key: (settings["options"] if "options" in settings else kind, settings)
        for key, (kind, settings) in whole.items()
    }


def defaults_of(name: str) -> dict:
    """What stands in a node's widgets when it is new."""
    values = {}
    for key, (kind, settings) in inputs_of(name).items():
        if "default" in settings:
            values[key] = settings["default"]
        elif isinstance(kind, list) and kind:
            values[key] = kind[0]
    return values


class NodeRun:
    """The outputs of nodes by what they are made of."""

    def __init__(self):
        self._made = {}

    def output(self, graph: dict, link: Link):
        """What a link carries; the nodes before it run first."""
        node_id, number = link
        if node_id not in graph:
            raise ValueError(f"The graph links to node {node_id}, which it does not have.")
        key = self._signature(graph, node_id)
        if key not in self._made:
            self._made[key] = self._run(graph, node_id)
        return self._made[key][number]

    def _signature(self, graph: dict, node_id: str) -> str:
        """Equal for nodes that give the same."""
        node = graph[node_id]
        values = {
            name: [self._signature(graph, value[0]), value[1]] if is_link(value) else value
            for name, value in node["inputs"].items()
        }
        return json.dumps([node["class_type"], values], sort_keys=True)

    def _run(self, graph: dict, node_id: str) -> tuple:
        node = graph[node_id]
        kind = class_of(node["class_type"])
        values = {
            name: self.output(graph, value) if is_link(value) else value
            for name, value in node["inputs"].items()
        }
        if hasattr(kind, "EXECUTE_NORMALIZED"):  # a node of the host's newer kind
            return tuple(kind.EXECUTE_NORMALIZED(**values).args)
        given = getattr(kind(), kind.FUNCTION)(**values)
        return given["result"] if isinstance(given, dict) else given
