"""The host's other ways to cache what nodes give out: a take is the same, and what it hands on
arrives.
"""

import pytest

from .test_server import dev, quickstart, tensor_bytes


@pytest.mark.parametrize("mode", [("--cache-none",), ("--cache-lru", "1")], ids=" ".join)
def test_a_take_in_two_parts_is_the_whole_one_twice(mode, host_path):
    graph = quickstart(frames=6)
    for picture in ("7", "8", "9", "10"):
        del graph[picture]
    sampler = graph["6"]["inputs"]
    graph["60"] = {
        "class_type": "KeepsakeARVideoSampler",
        "inputs": {**sampler, "stop_after": 3, "keep_memory": True},
    }
    graph["61"] = {
        "class_type": "KeepsakeARVideoSampler",
        "inputs": {**sampler, "kv_memory": ["60", 2]},
    }
    parts = {
        **graph,
        "12": {**graph["12"], "inputs": {**graph["12"]["inputs"], "samples": ["61", 0]}},
    }
    with dev.Server(host_path, cpu=True, options=mode) as server:
        whole, first, again = (
            tensor_bytes(server, server.run(one)) for one in (graph, parts, parts)
        )
    assert whole == first == again
