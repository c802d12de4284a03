"""Files that our nodes write, in the history of a real server."""

import json
from pathlib import Path

import av
import pytest
from support.pack import load_server

dev = load_server()
STREAM = json.loads((Path(__file__).parent / "stream_graph.json").read_text())
WORKFLOW = {"id": "a graph of the page", "nodes": []}


@pytest.fixture(scope="module")
def server(host_path):
    with dev.Server(host_path, cpu=True) as running:
        yield running


def test_a_streamed_video_is_in_the_history_and_carries_its_graph(server, monkeypatch):
    ask = server.ask

    def ask_as_a_page(path, body=None):
        if path == "/prompt":
            body = {**body, "extra_data": {"extra_pnginfo": {"workflow": WORKFLOW}}}
        return ask(path, body)

    monkeypatch.setattr(server, "ask", ask_as_a_page)
    result = server.run(STREAM)["outputs"]["6"]
    assert result["images"] == [
        {"filename": "small_00001_.mp4", "subfolder": "", "type": "output"}
    ] and result["animated"] == [True]
    with av.open(str(server.file(result["images"][0]))) as video:
        assert json.loads(video.metadata["workflow"]) == WORKFLOW
        assert json.loads(video.metadata["prompt"]) == STREAM
        assert len(list(video.decode(video=0))) == 21


def test_a_saved_memory_is_in_the_history_and_its_name_goes_to_load_kv_memory(server):
    """In one graph: six latent frames are saved, loaded by the name that was just given, and three
    more are made. memory_file names nothing.
    """
    graph = {key: STREAM[key] for key in "1234"}
    sampler = {**STREAM["6"]["inputs"]}
    del sampler["stream"]
    first = {**sampler, "keep_memory": True, "stop_after": 3}
    graph["6"] = {"class_type": "KeepsakeARVideoSampler", "inputs": first}
    saved = {"kv_memory": ["6", 2], "filename_prefix": "shots/take"}
    graph["7"] = {"class_type": "KeepsakeSaveKVMemory", "inputs": saved}
    loaded = {"memory_file": "", "name": ["7", 0]}
    graph["8"] = {"class_type": "KeepsakeLoadKVMemory", "inputs": loaded}
    rest = {**sampler, "kv_memory": ["8", 0]}
    graph["9"] = {"class_type": "KeepsakeARVideoSampler", "inputs": rest}
    graph["10"] = {"class_type": "KeepsakeKVMemoryStats", "inputs": {"kv_stats": ["9", 1]}}
    outputs = server.run(graph)["outputs"]
    (file,) = outputs["7"]["kv_memory"]
    assert file == {
        "filename": "take_00001_.safetensors",
        "subfolder": str(Path("kv_memory", "shots")),
        "type": "output",
    }
    assert server.file(file).stat().st_size > 1000
    assert outputs["10"]["kv_stats"][0]["frames"] == 6


@pytest.mark.parametrize("memory_file", ["", "gone.safetensors"])
def test_without_a_name_memory_file_must_be_listed(server, memory_file):
    load = {"class_type": "KeepsakeLoadKVMemory", "inputs": {"memory_file": memory_file}}
    show = {"class_type": "PreviewAny", "inputs": {"source": ["1", 0]}}
    with pytest.raises(dev.GraphError, match="is not in output/kv_memory"):
        server.run({"1": load, "2": show})
