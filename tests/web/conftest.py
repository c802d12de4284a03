"""A real Chromium on the web page of a real server; skipped, with the reason, where one of them is
missing.

Every test runs on the page that the host pins, and those that are marked `newest_page` also on the
newest one that the package index has: a page may be newer than its host.
"""

import frontend
import pytest
import setup
from support.browser import NoBrowser, chromium, open_page
from support.pack import load_server


def pytest_configure(config):
    config.addinivalue_line("markers", "newest_page: also on the newest page that the index has")


def pytest_generate_tests(metafunc):
    if "server" in metafunc.fixturenames:
        is_marked = metafunc.definition.get_closest_marker("newest_page")
        pages = ["pinned", "newest"] if is_marked else ["pinned"]
        metafunc.parametrize("server", pages, indirect=True, scope="package")


@pytest.fixture(scope="package")
def browser():
    """For as long as the tests of this folder run."""
    try:
        with chromium() as browser:
            yield browser
    except NoBrowser as missing:
        pytest.skip(str(missing))


def newest_version(host):
    """The version of the newest page. Skips where it is the pinned one, or cannot be had."""
    try:
        version = frontend.newest_version()
    except setup.SetupError as error:
        pytest.skip(f"the newest page could not be fetched: {error}")
    if version == frontend.pinned_version(host):
        pytest.skip(f"this ComfyUI pins the newest page, {version}")
    return version


@pytest.fixture(scope="package")
def server(request, browser, host_path):
    version = newest_version(host_path) if request.param == "newest" else None
    options = frontend.options(host_path, version)
    with load_server().Server(host_path, cpu=True, options=options) as running:
        yield running


@pytest.fixture(params=["canvas", "vue"])
def page(request, browser, server):
    """The page in either of the frontend's node renderers; an error in our files fails the test."""
    page = open_page(browser, server, vue_nodes=request.param == "vue")
    yield page
    server.ask("/interrupt", {})
    server.ask("/queue", {"clear": True})
    server.ask("/history", {"clear": True})  # whose results the next test's page would show
    server.free()  # so that the next test's nodes run again
    page.close()
    assert not page.faults
