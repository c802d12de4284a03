"""A real Chromium on the web page of a real server; skipped, with the reason, where one of them is missing."""
import json
import os
import shutil

import pytest
from pack import load_server

CHROMIUM = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
READY = "window.app?.vueAppReady && window.app.graph && window.app.extensionManager"
WAIT_MS = 120_000


@pytest.fixture(scope="package")
def browser():
    """For as long as the tests of this folder run: Playwright keeps an event loop running, which others cannot have beside theirs."""
    if not os.environ.get("COMFYUI_PATH"):
        pytest.skip("no ComfyUI to test in")
    program = os.environ.get("KEEPSAKE_CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.skip("no Chromium found; install one (on Debian: apt-get install chromium), or name its program in KEEPSAKE_CHROMIUM")
    sync_api = pytest.importorskip("playwright.sync_api", reason="the Python package playwright is missing")
    with sync_api.sync_playwright() as playwright:
        # As root, Chromium's own sandbox does not start; the page is ours and local.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def server(browser, host_path):
    with load_server().Server(host_path, cpu=True) as running:
        yield running


@pytest.fixture(params=["canvas", "vue"])
def page(request, browser, server):
    """The page as a user finds it, drawn by either of the frontend's node renderers; what our files did wrong fails the test."""
    server.ask("/settings", {"Comfy.TutorialCompleted": True, "Comfy.VueNodes.Enabled": request.param == "vue", "Comfy.Minimap.Visible": False})
    context = browser.new_context(viewport={"width": 1600, "height": 1000})
    page = Page(context.new_page(), server)
    page.visit()
    yield page
    server.ask("/interrupt", {})
    server.ask("/queue", {"clear": True})
    server.free()                            # so that the next test's nodes run again
    context.close()
    assert not page.faults


class Page:
    """The web page, in the words of a user."""

    def __init__(self, tab, server):
        self.tab, self.server, self.faults = tab, server, []
        tab.set_default_timeout(WAIT_MS)
        tab.on("pageerror", lambda error: self.faults.append(f"{error} {error.stack}"))
        tab.on("console", self._listen)
        tab.on("response", lambda answer: self._note(answer.url, f"answer {answer.status}") if answer.status >= 400 else None)

    def _listen(self, message):
        if message.type == "error":
            self._note(message.location.get("url", ""), message.text)

    def _note(self, url, text):
        """The host's page has errors of its own, for instance about a gallery that is not installed; ours are those of our files."""
        if "/extensions/keepsake" in url or "keepsake" in text.lower():
            self.faults.append(f"{url}: {text}")

    def visit(self):
        self.tab.goto(self.server.url)
        self.tab.wait_for_function(READY)

    def reload(self):
        self.tab.reload()
        self.tab.wait_for_function(READY)

    def open(self, name, latent_frames=None):
        """Open a shipped workflow as the template browser does; shorter or longer than it ships, where asked for."""
        answer = self.tab.evaluate("name => fetch(`/api/workflow_templates/keepsake/${name}.json`).then(answer => answer.json())", name)
        for node in answer["nodes"] if latent_frames else ():
            if node["type"] == "EmptyARVideoLatent":
                node["widgets_values"][2] = 4 * (latent_frames - 1) + 1
        self.tab.evaluate("([workflow, name]) => app.loadGraphData(workflow, true, true, name)", [answer, name])

    def run(self):
        """Press the button; the queued prompt's id."""
        with self.tab.expect_response(lambda answer: answer.request.method == "POST" and answer.url.endswith("/prompt")) as answer:
            self.tab.get_by_test_id("queue-button").click()
        return answer.value.json()["prompt_id"]

    def result(self, prompt_id):
        """Wait for a run's end; its `ui` output by node class."""
        for _ in range(WAIT_MS // 200):
            if run := self.server.ask(f"/history/{prompt_id}").get(prompt_id):
                break
            self.tab.wait_for_timeout(200)
        assert run["status"]["status_str"] == "success"
        return {run["prompt"][2][node_id]["class_type"]: output for node_id, output in run["outputs"].items()}

    def node(self, node_class):
        """A JavaScript expression for the first node of a class."""
        return f"app.graph.nodes.find(node => node.type === {json.dumps(node_class)})"

    def panel(self, node_class, name, text):
        """Our widget on a node, visible and with a text in it."""
        self.tab.wait_for_function(f"{self.node(node_class)}?.widgets?.find(widget => widget.name === '{name}')"
                                   f"?.element.textContent.includes({json.dumps(text)})")
        shown = self.tab.evaluate_handle(f"{self.node(node_class)}.widgets.find(widget => widget.name === '{name}').element").as_element()
        shown.wait_for_element_state("visible")
        return shown
