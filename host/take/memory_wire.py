"""The sampler's output kv_memory: a take that keeps none is refused where another node waits for
one.
"""

from comfy_execution.utils import get_executing_context

OUTPUT = 2  # number of the output among the sampler's


class _NotKept:
    """The value of the output where no memory was kept. The host caches it, so it can still reach
    a node that is connected later.
    """


NOT_KEPT = _NotKept()


def require_kept(keep_memory: bool, hidden):
    """ValueError, before sampling, where another node waits for a memory and none is kept.

    `hidden` is the sampler node's, with the host's `dynprompt`.
    """
    context = get_executing_context()
    if keep_memory or context is None:
        return
    graph = hidden.dynprompt
    wire = [context.node_id, OUTPUT]
    if any(wire in graph.get_node(other)["inputs"].values() for other in graph.all_node_ids()):
        raise ValueError(
            "The sampler's output kv_memory is connected, and keep_memory is off. Turn "
            "keep_memory on, or disconnect the output."
        )


def kept(memory):
    """The memory of an input kv_memory, or None for an open one. ValueError for `NOT_KEPT`."""
    if memory is NOT_KEPT:
        raise ValueError(
            "The sampler that made this take kept no KV memory, for its keep_memory is off. Turn "
            "it on, and the take is made anew."
        )
    return memory
