"""Files of a take in ComfyUI's folders: names, KV memories, a video that grows while it is made."""
