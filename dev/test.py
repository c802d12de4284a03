"""Run every test, then say how many host tests were skipped and why, and, on a ComfyUI that is
none of the tested ones, which of the parts that Keepsake uses differ there.

`dev/test --all-hosts` runs the host tests once more on each other tested ComfyUI. All else goes on
to pytest.
"""

import collections
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import host_parts
import setup

HOST_TESTS = ("tests/host", "tests/nodes", "tests/web")
INTERRUPTED, NOTHING_SELECTED = 2, 5  # exit codes of pytest


def run(arguments, host):
    """pytest's exit code on `host` (or on none), and a line on how the host tests fared."""
    report = setup.STATE / f"report-{os.getpid()}.xml"
    environment = os.environ | ({"COMFYUI_PATH": str(host)} if host else {})
    # The script and not `-m pytest`, which puts the checkout on sys.path, where our `nodes` would
    # hide the host's.
    pytest = Path(sys.executable).with_name("pytest")
    if not pytest.exists():
        sys.exit(
            f"{sys.executable} has no pytest beside it; install pytest there, or unset "
            "KEEPSAKE_VENV."
        )
    code = subprocess.run(
        [pytest, f"--junitxml={report}", *arguments], cwd=setup.ROOT, env=environment
    ).returncode
    if not report.exists():  # --help, or a --junitxml of the user's own
        return code, None
    cases = [
        case
        for case in xml.parse(report).iter("testcase")
        if f"{case.get('classname')}.{case.get('name')}".strip(".")
        .replace(".", "/")
        .startswith(HOST_TESTS)
    ]
    report.unlink()
    skipped = collections.Counter(
        reason(skip)
        for case in cases
        for skip in case.iter("skipped")
        if skip.get("type") != "pytest.xfail"
    )
    count = sum(skipped.values())
    why = (
        ": " + "; ".join(f"{number} x {text}" for text, number in skipped.most_common())
        if count
        else ""
    )
    return code, f"{name(host)}: {len(cases) - count} host tests run, {count} skipped{why}"


def reason(skip):
    """Why a test was skipped; a file that skips itself as a whole is one entry, with the reason in
    its text.
    """
    whole = re.search(r"Skipped: (.*)[\"']\)$", skip.text or "")
    return f"whole file: {whole[1]}" if whole else skip.get("message")


def name(host):
    return f"ComfyUI {version(host)}" if host else "NO COMFYUI"


def version(host):
    return re.search(r'__version__ = "(.*)"', (host / "comfyui_version.py").read_text())[1]


def parts_that_differ(host):
    """A line on a ComfyUI of the user's own; None on a tested one."""
    if not host or version(host) in setup.HOSTS:
        return None
    try:
        with setup.one_at_a_time():
            tested = setup.fetch_host(setup.NEWEST, sys.executable)
    except setup.SetupError as error:
        return f"{name(host)}: NOT COMPARED with {setup.NEWEST}: {error}"
    return f"{name(host)}: {host_parts.report(host, tested, setup.NEWEST)}"


def other_hosts(host):
    with setup.one_at_a_time():
        hosts = [setup.fetch_host(version, sys.executable) for version in setup.HOSTS]
    return [other for other in hosts if other != host]


def main():
    if {"-h", "--help"} & set(sys.argv):
        sys.exit(print(__doc__))
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is pytest's, which then reports and ends
    arguments = [argument for argument in sys.argv[1:] if argument != "--all-hosts"]
    host = Path(os.environ["COMFYUI_PATH"]) if "COMFYUI_PATH" in os.environ else None
    runs = [run(arguments, host)]
    if "--all-hosts" in sys.argv and runs[0][0] != INTERRUPTED:
        chosen = arguments
        if not any(argument.startswith("tests/") for argument in arguments):
            chosen = [
                *(folder for folder in HOST_TESTS if (setup.ROOT / folder).exists()),
                *arguments,
            ]
        try:
            for other in other_hosts(host):
                code, line = run(chosen, other)
                runs.append((0 if code == NOTHING_SELECTED else code, line))
        except setup.SetupError as error:
            runs.append((1, f"NOT RUN on every ComfyUI: {error}"))
    for line in (*(line for _, line in runs), parts_that_differ(host)):
        if line:
            print(line, flush=True)
    sys.exit(next((code for code, _ in runs if code), 0))


if __name__ == "__main__":
    main()
