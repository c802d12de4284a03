"""Keepsake: long takes with autoregressive video models in ComfyUI, and a say in what they
remember.
"""

WEB_DIRECTORY = "./web"


async def comfy_entrypoint():
    try:
        from .nodes import (
            KeepsakeExtension,  # here, not above: the tests import this package without a host
        )
    except ImportError as error:
        from .host import TESTED_HOSTS

        raise ImportError(
            f"Keepsake needs something that this ComfyUI does not have: {error}. It is tested "
            f"with ComfyUI {TESTED_HOSTS}; "
            "use one of these or a newer Keepsake."
        ) from error

    return KeepsakeExtension()
