"""The messages to the page while a take runs."""

import json
import sys
import types
from pathlib import Path

import folder_paths
import pytest
from comfy_execution.graph import DynamicPrompt
from comfy_execution.progress import reset_progress_state
from comfy_execution.utils import CurrentNodeContext
from keepsake.host.show.live import TakeMessages
from keepsake.kv_policies import Chunk
from keepsake.rollout.trace import Trace


@pytest.fixture
def sent(monkeypatch):
    messages = []
    instance = types.SimpleNamespace(
        client_id="page", send_sync=lambda *message: messages.append(message)
    )
    monkeypatch.setitem(
        sys.modules,
        "server",
        types.SimpleNamespace(PromptServer=types.SimpleNamespace(instance=instance)),
    )
    return messages


def make(trace, item, first, chunks):
    """Let a trace have rows of `chunks` more chunks of three frames."""
    trace.item = item
    for index in range(first, first + chunks):
        trace.finish(Chunk(index, 3 * index, 3))


def rows_in_file(message):
    file = message["file"]
    assert file["type"] == "temp"
    path = Path(folder_paths.get_temp_directory(), file["subfolder"], file["filename"])
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_message_has_the_new_rows_alone_and_names_a_file_of_all(sent):
    trace, messages = Trace(), TakeMessages(9)
    with CurrentNodeContext("prompt", "7:6"):
        for first, chunks in ((0, 1), (1, 2)):
            make(trace, 0, first, chunks)
            messages.tell_page(trace)
    for event, _, page in sent:
        assert (event, page) == ("keepsake.chunk", "page")
    (one, two) = (message for _, message, _ in sent)
    assert (two["node"], two["prompt_id"], two["frames"]) == ("7:6", "prompt", 9)
    assert (one["first"], two["first"]) == (0, 1)
    assert [(row["start_frame"], row["frames"], row["kept_tokens"]) for row in two["chunks"]] == [
        (3, 3, 0),
        (6, 3, 0),
    ]
    assert one["file"] == two["file"]
    assert rows_in_file(two) == json.loads(json.dumps(one["chunks"] + two["chunks"]))


def test_each_item_of_a_batch_begins_anew(sent):
    trace, messages = Trace(), TakeMessages(3)
    with CurrentNodeContext("prompt", "6"):
        for item in (0, 1):
            make(trace, item, 0, 1)
            messages.tell_page(trace)
    (one, two) = (message for _, message, _ in sent)
    assert one["file"] != two["file"] and two["first"] == 0
    assert len(two["chunks"]) == len(rows_in_file(two)) == 1


def test_the_last_message_of_a_long_take_is_as_small_as_the_first(sent):
    trace, messages = Trace(), TakeMessages(15_000)
    with CurrentNodeContext("prompt", "6"):
        make(trace, 0, 0, 4999)
        messages.tell_page(trace)
        make(trace, 0, 4999, 1)
        messages.tell_page(trace)
    last = sent[-1][1]
    assert len(json.dumps(last)) < 1000 and len(rows_in_file(last)) == 5000


def test_outside_a_node_nothing_is_sent(sent):
    trace = Trace()
    make(trace, 0, 0, 1)
    TakeMessages(3).tell_page(trace)
    assert not sent


def test_a_message_that_fails_does_not_end_the_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "server", types.SimpleNamespace())
    with CurrentNodeContext("prompt", "6"):
        TakeMessages(3).tell_page(Trace())


def test_a_node_in_a_loop_is_called_by_the_id_that_the_page_knows(sent):
    """A loop's body runs as copies: node 6 as 5.0.0_6, in the first turn of loop 5."""
    graph = DynamicPrompt({"5": {}, "6": {}})
    graph.add_ephemeral_node("5.0.0_6", {}, "5", "6")
    reset_progress_state("prompt", graph)
    try:
        with CurrentNodeContext("prompt", "5.0.0_6"):
            TakeMessages(9).tell_page(Trace())
    finally:
        reset_progress_state("", DynamicPrompt({}))
    assert [message["node"] for _, message, _ in sent] == ["6"]
