"""The only files that touch ComfyUI's inside: attention patch, checkpoints, model calls, memory
book-keeping, previews.
"""

TESTED_HOSTS = "0.24, 0.27, 0.30 and 0.33"
