"""The web page of a ComfyUI: each pins a version of it, and the environment holds that of the
ComfyUI it was built for.
"""

import importlib.metadata
import json
import re
import shutil
import sys
from pathlib import Path

import setup

PACKAGE = "comfyui-frontend-package"
HOMES = setup.STATE / "frontends"


def pinned_version(host):
    """The version that the requirements of `host` name; None where they name no single one."""
    requirements = (Path(host) / "requirements.txt").read_text()
    pinned = re.search(rf"^{PACKAGE}==(\S+)", requirements, re.MULTILINE)
    return pinned[1] if pinned else None


def newest_version():
    """The newest version on the package index. SetupError where it cannot be reached."""
    report = HOMES / "newest.json"
    with setup.one_at_a_time():
        HOMES.mkdir(exist_ok=True)
        options = ["--dry-run", "--no-deps", "--ignore-installed", "--report", report]
        setup.pip(sys.executable, "install", *options, PACKAGE)
        (found,) = json.loads(report.read_text())["install"]
    return found["metadata"]["version"]


def options(host, version=None):
    """What `host`'s main.py needs to serve a version of the page, by default the one that it pins.
    It is fetched where the environment has another.
    """
    version = version or pinned_version(host)
    installed = {each.version for each in importlib.metadata.distributions(name=PACKAGE)}
    if version is None or version in installed:
        return []
    home = HOMES / version
    with setup.one_at_a_time():
        if not home.exists():
            setup.say(f"fetching version {version} of ComfyUI's web page (30 MB)")
            partial = home.with_name(f"{home.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            wanted = f"{PACKAGE}=={version}"
            setup.pip(sys.executable, "install", "--no-deps", "--target", partial, wanted)
            partial.rename(home)
    return ["--front-end-root", home / "comfyui_frontend_package/static"]
