"""The wire on which a sampler hands its KV memory on: a take that keeps none is refused where one
is waited for.
"""

from comfy_execution.utils import get_executing_context

OUTPUT = 2  # of the sampler's outputs, its KV memory


class _NotKept:
    """What goes over the wire where no memory was kept: the host gives out a finished take again
    when a wire is connected later.
    """


NOT_KEPT = _NotKept()


def require_kept(keep_memory: bool, hidden):
    """Refuse, before sampling, a take whose memory another node waits for; `hidden` is the sampler
    node's, with the host's `dynprompt`.
    """
    context = get_executing_context()
    if keep_memory or context is None:
        return
    graph, wire = hidden.dynprompt, [context.node_id, OUTPUT]
    if any(wire in graph.get_node(other)["inputs"].values() for other in graph.all_node_ids()):
        raise ValueError(
            "The sampler's output kv_memory is connected, and keep_memory is off. Turn "
            "keep_memory on, or disconnect the output."
        )


def kept(memory):
    """What came over the wire, which must be a memory, or None for an open input."""
    if memory is NOT_KEPT:
        raise ValueError(
            "The sampler that made this take kept no KV memory, for its keep_memory is off. Turn "
            "it on, and the take is made anew."
        )
    return memory
