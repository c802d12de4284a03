"""The web page of a ComfyUI: each pins a version of it, and the environment holds that of the
ComfyUI it was built for.
"""

import importlib.metadata
import re
import shutil
import sys
from pathlib import Path

import setup

PACKAGE = "comfyui-frontend-package"


def options(host):
    """What `host`'s main.py needs to serve the page that it pins, which is fetched where the
    environment has another.
    """
    pinned = re.search(
        rf"^{PACKAGE}==(\S+)", (Path(host) / "requirements.txt").read_text(), re.MULTILINE
    )
    if not pinned or pinned[1] in {
        installed.version for installed in importlib.metadata.distributions(name=PACKAGE)
    }:
        return []
    home = setup.STATE / "frontends" / pinned[1]
    with setup.one_at_a_time():
        if not home.exists():
            setup.say(f"fetching the web page of the ComfyUI in {host} (30 MB)")
            partial = home.with_name(f"{home.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            setup.pip(
                sys.executable,
                "install",
                "--no-deps",
                "--target",
                partial,
                f"{PACKAGE}=={pinned[1]}",
            )
            partial.rename(home)
    return ["--front-end-root", home / "comfyui_frontend_package/static"]
