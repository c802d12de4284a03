"""Messages to the web page while a take runs: each finished chunk sends its own row. A page that is
opened late finds the rows before it in a temp file, which each message names.
"""

import json
import logging
from pathlib import Path

from comfy_execution.progress import get_progress_state
from comfy_execution.utils import get_executing_context

from ...rollout.chunk_row import ChunkRow
from ...rollout.trace import Trace
from .result_files import new_temp_file

EVENT = "keepsake.chunk"
SENT_FIELDS = (  # of a ChunkRow; what the page's chart draws
    "start_frame",
    "frames",
    "given",
    "kept_tokens",
    "full_tokens",
    "bank_bytes",
    "allocated_bytes",
    "seconds",
)


class TakeMessages:
    """The messages of one take. The rows of each batch item go into a file of their own, one JSON
    object a line.
    """

    def __init__(self, total_frames: int):
        self.total_frames = total_frames
        self.item: int | None = None  # in work
        self.sent = 0  # rows of that item
        self.path: Path | None = None  # of the item's file
        self.file: dict | None = None  # the same as the page names it

    def tell_page(self, trace: Trace):
        """Send the new rows of the batch item in work to the page that queued the run.

        Does nothing outside a server's node, and an error here never ends a run.
        """
        context = get_executing_context()
        if context is None:
            return
        try:
            from server import PromptServer  # here: only a running server has it on its path

            first, rows = self._new_rows(trace)
            message = {
                "node": displayed_node(context.node_id),
                "prompt_id": context.prompt_id,
                "frames": self.total_frames,
                "file": self.file,
                "first": first,  # number of the first of `chunks` among the item's rows
                "chunks": rows,
            }
            page = PromptServer.instance
            page.send_sync(EVENT, message, page.client_id)
        except Exception:
            logging.warning(
                "Keepsake: the message of a finished chunk did not reach the web page.",
                exc_info=True,
            )

    def _new_rows(self, trace: Trace) -> tuple[int, list[dict]]:
        """The rows that were not sent yet, and the number of the first; they go into the file."""
        if self.item != trace.item:
            self.path, self.file = new_temp_file(".jsonl")
            self.item, self.sent = trace.item, 0
        first = self.sent
        rows = [row for row in trace.rows if row.item == trace.item]
        new = [_sent(row) for row in rows[first:]]
        self.sent = len(rows)
        with open(self.path, "a", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in new)
        return first, new


def _sent(row: ChunkRow) -> dict:
    return {name: getattr(row, name) for name in SENT_FIELDS}


def displayed_node(node_id: str) -> str:
    """The node on the page that an executing node stands for: of one in a loop's body, which runs
    as a copy under an id of its own, the node that was copied.
    """
    return get_progress_state().dynprompt.get_display_node_id(node_id)
