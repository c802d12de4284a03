"""A running take, told to the web page: after each finished chunk one message, with all rows so
far, so that a page opened late can draw.
"""

import logging

from comfy_execution.utils import get_executing_context

from ...rollout.trace import Trace

EVENT = "keepsake.chunk"
TOLD = (
    "start_frame",
    "frames",
    "given",
    "kept_tokens",
    "full_tokens",
    "bank_bytes",
    "allocated_bytes",
    "seconds",
)


def tell_page(trace: Trace, total_frames: int):
    """Send the rows of the batch item in work to the page that queued the run. Does nothing outside
    a server's node; never ends a run.
    """
    context = get_executing_context()
    if context is None:
        return
    try:
        from server import PromptServer  # here: only a running server has it on its path

        chunks = [
            {name: getattr(row, name) for name in TOLD}
            for row in trace.rows
            if row.item == trace.item
        ]
        page = PromptServer.instance
        page.send_sync(
            EVENT,
            {
                "node": context.node_id,
                "prompt_id": context.prompt_id,
                "frames": total_frames,
                "chunks": chunks,
            },
            page.client_id,
        )
    except Exception:
        logging.warning(
            "Keepsake: the web page could not be told of a finished chunk.", exc_info=True
        )
