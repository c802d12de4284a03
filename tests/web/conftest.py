"""A real Chromium on the web page of a real server; skipped, with the reason, where one of them is
missing.
"""

import frontend
import pytest
from support.browser import NoBrowser, chromium, open_page
from support.pack import load_server


@pytest.fixture(scope="package")
def browser():
    """For as long as the tests of this folder run."""
    try:
        with chromium() as browser:
            yield browser
    except NoBrowser as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="package")
def server(browser, host_path):
    with load_server().Server(host_path, cpu=True, options=frontend.options(host_path)) as running:
        yield running


@pytest.fixture(params=["canvas", "vue"])
def page(request, browser, server):
    """The page in either of the frontend's node renderers; an error in our files fails the test."""
    page = open_page(browser, server, vue_nodes=request.param == "vue")
    yield page
    server.ask("/interrupt", {})
    server.ask("/queue", {"clear": True})
    server.free()  # so that the next test's nodes run again
    page.close()
    assert not page.faults
