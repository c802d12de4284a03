"""The pack under the fixed name `keepsake`, beside a ComfyUI when COMFYUI_PATH names one."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "dev"))
from support.pack import load_pack, use_host

HOST = use_host("--cpu")
load_pack()


def pytest_addoption(parser):
    parser.addoption("--draws", type=int, default=25, help="policies that the tests draw at random")


@pytest.fixture(scope="session")
def host_path():
    return Path(HOST)
