"""A take inside ComfyUI: the node's call, its plan, sampling, and going on from a saved memory."""
