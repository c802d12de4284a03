"""What the page is told while a take runs."""

import sys
import types

import pytest
from comfy_execution.graph import DynamicPrompt
from comfy_execution.progress import reset_progress_state
from comfy_execution.utils import CurrentNodeContext
from keepsake.host.show.live import tell_page
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


def trace_of_two_items():
    trace = Trace()
    for item, chunks in ((0, 2), (1, 1)):
        trace.item = item
        for index in range(chunks):
            trace.finish(Chunk(index, 3 * index, 3))
    return trace


def test_the_rows_of_the_item_in_work_go_to_the_page_that_queued(sent):
    with CurrentNodeContext("prompt", "7:6"):
        tell_page(trace_of_two_items(), 9)
    ((event, announcement, page),) = sent
    assert (event, page) == ("keepsake.chunk", "page")
    assert (announcement["node"], announcement["prompt_id"], announcement["frames"]) == (
        "7:6",
        "prompt",
        9,
    )
    assert [
        (row["start_frame"], row["frames"], row["kept_tokens"]) for row in announcement["chunks"]
    ] == [(0, 3, 0)]


def test_outside_a_node_nothing_is_sent(sent):
    tell_page(trace_of_two_items(), 9)
    assert not sent


def test_a_message_that_fails_does_not_end_the_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "server", types.SimpleNamespace())
    with CurrentNodeContext("prompt", "6"):
        tell_page(trace_of_two_items(), 9)


def test_a_node_in_a_loop_is_called_by_the_id_that_the_page_knows(sent):
    """A loop's body runs as copies: node 6 as 5.0.0_6, in the first turn of loop 5."""
    graph = DynamicPrompt({"5": {}, "6": {}})
    graph.add_ephemeral_node("5.0.0_6", {}, "5", "6")
    reset_progress_state("prompt", graph)
    try:
        with CurrentNodeContext("prompt", "5.0.0_6"):
            tell_page(trace_of_two_items(), 9)
    finally:
        reset_progress_state("", DynamicPrompt({}))
    assert [message["node"] for _, message, _ in sent] == ["6"]
