"""The pack under the fixed name `keepsake`, beside a ComfyUI when COMFYUI_PATH names one."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "dev"))
from support.pack import load_pack, use_host

HOST = use_host("--cpu")
load_pack()

NEED_HOST = ("demo", "dev", "host", "nodes", "web")  # folders
NEED_NO_HOST = ("test_help.py",)  # files in them


class NoHost(pytest.Module):
    """A test file that cannot be imported without ComfyUI."""

    def collect(self):
        pytest.skip("no ComfyUI to test in", allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    """Without ComfyUI, skip the files that need one as a whole, before they are imported."""
    room = module_path.relative_to(Path(__file__).parent).parts[0]
    if not HOST and room in NEED_HOST and module_path.name not in NEED_NO_HOST:
        return NoHost.from_parent(parent, path=module_path)


def pytest_addoption(parser):
    parser.addoption("--draws", type=int, default=25, help="policies that the tests draw at random")


@pytest.fixture(scope="session")
def host_path():
    return Path(HOST)
