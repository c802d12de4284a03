"""The only files that touch ComfyUI's inside: attention patch, checkpoints, model calls, memory book-keeping, previews."""
