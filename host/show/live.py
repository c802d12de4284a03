"""Messages to the web page while a take runs. Each finished chunk sends one, with all rows so far,
so that a page that is opened late can draw too.
"""

import logging

from comfy_execution.progress import get_progress_state
from comfy_execution.utils import get_executing_context

from ...rollout.trace import Trace

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


def tell_page(trace: Trace, total_frames: int):
    """Send the rows of the batch item in work to the page that queued the run.

    Does nothing outside a server's node, and an error here never ends a run.
    """
    context = get_executing_context()
    if context is None:
        return
    try:
        from server import PromptServer  # here: only a running server has it on its path

        rows = [row for row in trace.rows if row.item == trace.item]
        message = {
            "node": displayed_node(context.node_id),
            "prompt_id": context.prompt_id,
            "frames": total_frames,
            "chunks": [{name: getattr(row, name) for name in SENT_FIELDS} for row in rows],
        }
        page = PromptServer.instance
        page.send_sync(EVENT, message, page.client_id)
    except Exception:
        logging.warning(
            "Keepsake: the message of a finished chunk did not reach the web page.", exc_info=True
        )


def displayed_node(node_id: str) -> str:
    """The node on the page that an executing node stands for: of one in a loop's body, which runs
    as a copy under an id of its own, the node that was copied.
    """
    return get_progress_state().dynprompt.get_display_node_id(node_id)
