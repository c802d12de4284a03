"""Keepsake: long takes with autoregressive video models in ComfyUI, and a say in what they remember."""
WEB_DIRECTORY = "./web"


async def comfy_entrypoint():
    from .nodes import KeepsakeExtension  # here, not above: the tests import this package without a host

    return KeepsakeExtension()
