"""What `dev/test` says of a ComfyUI that is none of the tested ones."""

import host_parts
import pytest

FILES = {
    "comfy/utils.py": "def load(path):\n    return path\n\n\nSIZE = 3\n",
    "comfy/sd.py": "from .utils import load as read\n\n\nclass VAE:\n    def encode(self): ...\n",
    "comfy_api/latest/__init__.py": "from . import _public as io\n",
    "comfy_api/latest/_public.py": "from ._io import *\n",
    "comfy_api/latest/_io.py": "class Int:\n    class Input: ...\n",
}
PARTS = [
    ("comfy.sd", "VAE.encode"),
    ("comfy.sd", "read"),
    ("comfy.utils", "SIZE"),
    ("comfy_api.latest", "io.Int.Input"),
]


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    """Two hosts with the same files: one to be changed, and the tested one."""
    monkeypatch.setattr(host_parts, "parts", lambda: PARTS)
    for host in ("new", "tested"):
        for name, text in FILES.items():
            file = tmp_path / host / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    return tmp_path / "new", tmp_path / "tested"


def change(host, name, old, new):
    text = (host / name).read_text()
    assert old in text
    (host / name).write_text(text.replace(old, new))


def test_equal_hosts_do_not_differ(hosts):
    assert host_parts.differences(*hosts) == ([], [])


def test_comments_layout_and_what_nobody_uses_make_no_difference(hosts):
    change(hosts[0], "comfy/utils.py", "    return path", "    # as it is\n    return (path)")
    change(hosts[0], "comfy/sd.py", "class VAE:", "class VAE:\n    other = 1")
    assert host_parts.differences(*hosts) == ([], [])


@pytest.mark.parametrize(
    "name, old, new, part",
    [
        ("comfy/sd.py", "(self)", "(self, x)", "comfy.sd.VAE.encode"),
        ("comfy/utils.py", "return path", "return open(path)", "comfy.sd.read"),
        ("comfy/utils.py", "3", "4", "comfy.utils.SIZE"),
        ("comfy_api/latest/_io.py", "Input: ...", "Input: x = 1", "comfy_api.latest.io.Int.Input"),
    ],
)
def test_a_part_that_is_written_differently_is_named(name, old, new, part, hosts):
    change(hosts[0], name, old, new)
    assert host_parts.differences(*hosts) == ([], [part])


def test_a_part_that_is_not_there_is_named_as_missing(hosts):
    change(hosts[0], "comfy/utils.py", "SIZE", "LENGTH")
    (hosts[0] / "comfy_api/latest/_io.py").unlink()
    assert host_parts.differences(*hosts)[0] == [
        "comfy.utils.SIZE",
        "comfy_api.latest.io.Int.Input",
    ]


def test_the_report_counts_and_names_them(hosts):
    change(hosts[0], "comfy/utils.py", "3", "4")
    change(hosts[0], "comfy/sd.py", "encode", "code")
    assert host_parts.report(*hosts, "0.30.0") == (
        "of the 4 names that Keepsake uses, 0 are missing and 2 are written differently than in "
        "0.30.0; different: comfy.sd.VAE.encode, comfy.utils.SIZE"
    )
