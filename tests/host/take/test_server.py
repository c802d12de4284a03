"""A real server, driven over its HTTP API as a headless user drives it."""

import json
from pathlib import Path

import psutil
import pytest
from support.pack import load_server

ROOT = Path(__file__).parents[3]
QUICKSTART = json.loads((ROOT / "workflows/api/quickstart.json").read_text())
dev = load_server()


@pytest.fixture(scope="module")
def server(host_path):
    with dev.Server(host_path, cpu=True) as running:
        yield running


def quickstart(frames=6, seed=7, **sampler):
    graph = json.loads(json.dumps(QUICKSTART))
    graph["3"]["inputs"]["length"] = 4 * (frames - 1) + 1
    graph["4"]["inputs"]["away_frames"] = 2
    graph["6"]["inputs"].update(seed=seed, **sampler)
    return graph


def latents(server, entry) -> bytes:
    return server.file(entry["outputs"]["12"]["latents"][0]).read_bytes()


def tensor_bytes(server, entry) -> bytes:
    """The tensor of a saved latent, without the header that holds the prompt."""
    from safetensors.torch import load

    return load(latents(server, entry))["latent_tensor"].numpy().tobytes()


def test_the_quickstart_leaves_video_stats_and_latents(server):
    entry = server.run(quickstart())
    stats = server.values(entry["outputs"]["11"], "kv_stats_file")
    assert stats["frames"] == 6 and len(stats["chunks"]) == 2 and stats["prune_ratio"] == 0
    assert (
        stats["peak_cache_bytes"] == 6 * 32 * 2 * 192 * 6 * 4
    )  # frames, tokens, k and v, width, layers, fp32
    assert "prune ratio" in entry["outputs"]["11"]["text"][0]
    assert server.file(entry["outputs"]["11"]["images"][0]).stat().st_size > 10_000
    assert server.file(entry["outputs"]["10"]["images"][0]).stat().st_size > 1_000


def test_a_second_queue_runs_nothing_again_and_the_same_seed_is_bit_equal(server):
    first = server.run(quickstart(seed=21))
    ran = set()
    second = server.run(
        quickstart(seed=21), lambda node_id, node_class, value, total: ran.add(node_class)
    )
    assert "KeepsakeARVideoSampler" not in ran and second["outputs"] == first["outputs"]
    other = server.run(quickstart(seed=22))
    server.free()
    again = server.run(quickstart(seed=21))
    assert tensor_bytes(server, first) == tensor_bytes(server, again) != tensor_bytes(server, other)


def test_an_estimate_is_made_anew_each_time_and_nothing_else(server):
    """What is free changes from run to run."""
    graph, ran = quickstart(seed=21), set()
    graph["70"] = {
        "class_type": "KeepsakeKVMemoryEstimate",
        "inputs": {
            "model": ["1", 0],
            "latent": ["3", 0],
            "steps": 0,
            "cfg": 1.0,
            "chunk_frames": 0,
            "prompts": 1,
        },
    }
    server.run(graph)
    server.run(graph, lambda node_id, node_class, value, total: ran.add(node_class))
    assert ran == {"KeepsakeKVMemoryEstimate"}


def test_a_window_policy_gives_another_take_and_says_so(server):
    graph = quickstart(frames=12)
    full = server.run(graph)
    graph["5"] = {
        "class_type": "KeepsakePolicySinkWindow",
        "inputs": {"window_frames": 6, "sink_frames": 0, "sink_rope": "absolute"},
    }
    window = server.run(graph)
    assert tensor_bytes(server, full) != tensor_bytes(server, window)
    assert window["outputs"]["11"]["kv_stats"][0]["prune_ratio"] == pytest.approx(
        1 - (0 + 3 + 3 + 3) / (0 + 3 + 6 + 9)
    )


def test_two_branches_with_two_policies_in_one_graph(server):
    graph = quickstart(frames=9)
    graph["25"] = {
        "class_type": "KeepsakePolicySinkWindow",
        "inputs": {"window_frames": 6, "sink_frames": 0, "sink_rope": "absolute"},
    }
    graph["26"] = {**graph["6"], "inputs": {**graph["6"]["inputs"], "kv_policy": ["25", 0]}}
    graph["31"] = {"class_type": "KeepsakeKVMemoryStats", "inputs": {"kv_stats": ["26", 1]}}
    entry = server.run(graph)
    assert (
        entry["outputs"]["11"]["kv_stats"][0]["prune_ratio"]
        == 0
        < entry["outputs"]["31"]["kv_stats"][0]["prune_ratio"]
    )


def test_the_sampler_works_in_samplercustomadvanced(server):
    graph = quickstart(frames=6)
    together = tensor_bytes(server, server.run(graph))
    graph["40"] = {
        "class_type": "KeepsakeARVideoSamplerSelect",
        "inputs": {"chunk_frames": 0, "kv_policy": ["5", 0], "control": ["4", 0]},
    }
    graph["41"] = {"class_type": "RandomNoise", "inputs": {"noise_seed": 7}}
    graph["42"] = {
        "class_type": "BasicGuider",
        "inputs": {"model": ["1", 0], "conditioning": ["2", 0]},
    }
    graph["43"] = {
        "class_type": "BasicScheduler",
        "inputs": {"model": ["1", 0], "scheduler": "simple", "steps": 8, "denoise": 1.0},
    }
    graph["44"] = {
        "class_type": "SamplerCustomAdvanced",
        "inputs": {
            "noise": ["41", 0],
            "guider": ["42", 0],
            "sampler": ["40", 0],
            "sigmas": ["43", 0],
            "latent_image": ["3", 0],
        },
    }
    graph["12"]["inputs"]["samples"] = ["44", 0]
    assert tensor_bytes(server, server.run(graph)) == together


def test_cancel_in_mid_chunk_then_run_again(server):
    expected = tensor_bytes(server, server.run(quickstart(frames=30, seed=5)))
    server.free()

    def stop(node_id, node_class, value, total):
        if node_class == "KeepsakeARVideoSampler" and value > 3:
            server.interrupt()

    with pytest.raises(dev.Interrupted):
        server.run(quickstart(frames=150, seed=5), stop)
    server.free()
    assert tensor_bytes(server, server.run(quickstart(frames=30, seed=5))) == expected


def test_bad_input_is_one_sentence_and_the_next_run_works(server):
    graph = quickstart()
    del graph["6"]["inputs"]["control"]
    with pytest.raises(dev.GraphError, match="follows a camera and none is connected"):
        server.run(graph)
    graph = quickstart(chunk_frames=8)  # of which the take of 6 frames fills 6
    graph["5"] = {
        "class_type": "KeepsakePolicySinkWindow",
        "inputs": {"window_frames": 6, "sink_frames": 3, "sink_rope": "absolute"},
    }
    with pytest.raises(dev.GraphError, match="Use window_frames of at least 9, or smaller chunks"):
        server.run(graph)
    graph["5"]["inputs"]["window_frames"] = 3
    with pytest.raises(dev.GraphError, match="at least 3 plus the chunk"):
        server.run(graph)
    server.run(quickstart(seed=99))


def test_a_memory_that_is_waited_for_and_would_not_be_kept_is_refused_before_sampling(server):
    save = {
        "class_type": "KeepsakeSaveKVMemory",
        "inputs": {"kv_memory": ["6", 2], "filename_prefix": "server"},
    }
    ran = []
    with pytest.raises(dev.GraphError, match="kv_memory is connected, and keep_memory is off"):
        server.run(
            {**quickstart(seed=31), "50": save},
            lambda node_id, node_class, value, total: ran.append((node_class, value)),
        )
    assert ("KeepsakeARVideoSampler", 1) not in ran
    server.run(
        quickstart(seed=31)
    )  # and now the host has the take without a memory, and runs no sampler
    with pytest.raises(dev.GraphError, match="kept no KV memory, for its keep_memory is off"):
        server.run({**quickstart(seed=31), "50": save})
    second = {
        **quickstart(seed=31)["6"],
        "inputs": {**quickstart(seed=31)["6"]["inputs"], "kv_memory": ["6", 2]},
    }
    with pytest.raises(dev.GraphError, match="kept no KV memory"):
        server.run(
            {
                **quickstart(seed=31),
                "51": second,
                "52": {
                    "class_type": "SaveLatent",
                    "inputs": {"samples": ["51", 0], "filename_prefix": "x"},
                },
            }
        )
    entry = server.run({**quickstart(seed=31, keep_memory=True), "50": save})
    assert "Written to kv_memory" in entry["outputs"]["50"]["text"][0]


def test_memory_does_not_grow_from_take_to_take(server):
    process = psutil.Process(server.process.pid)

    def level(seeds):
        """The least of several readings: what a take leaves to the collector comes and goes."""
        readings = []
        for seed in seeds:
            graph = quickstart(frames=30, seed=seed)
            for picture in (
                "7",
                "8",
                "9",
                "10",
            ):  # decoding and video take most of the time and hold no cache
                del graph[picture]
            entry = server.run(graph)
            readings.append(process.memory_info().rss)
        return min(readings), entry["outputs"]["11"]["kv_stats"][0]["peak_cache_bytes"]

    level(range(100, 104))  # the host's own caches fill first
    before, cache = level(range(104, 107))
    level(range(107, 112))
    after, _ = level(range(112, 115))
    assert after - before < 4 * cache  # one kept cache per take would be 6 at least
