"""Keepsake: long takes with autoregressive video models in ComfyUI, and a say in what they
remember.
"""

WEB_DIRECTORY = "./web"


async def comfy_entrypoint():
    # Imported here, not above: the tests import this package without a host.
    from .host.needs import require_names

    require_names()
    from .nodes import KeepsakeExtension

    return KeepsakeExtension()
