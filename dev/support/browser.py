"""A real Chromium on the web page of a server, in the words of a user: for the page's tests and
`dev/pictures`.

with chromium() as browser, Server(host, options=frontend.options(host)) as server:
    page = open_page(browser, server)
"""

import contextlib
import json
import os
import re
import shutil

CHROMIUM = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
READY = (
    "window.app?.vueAppReady && window.app.graph && window.app.extensionManager"
    " && !window.app.extensionManager.spinner"
)
WAIT_MS = 120_000

# Whether a panel lies within the width of its node and below the node's top edge.
IS_ON_ITS_NODE = """([node, panel]) => {
  const { canvas, ds } = app.canvas;
  const page = canvas.getBoundingClientRect();
  const onPage = (graph, i) => (graph + ds.offset[i]) * ds.scale;
  const left = page.left + onPage(node.pos[0], 0);
  const top = page.top + onPage(node.pos[1], 1);
  const box = panel.getBoundingClientRect();
  const right = left + node.size[0] * ds.scale;
  return left - 1 <= box.left && box.right <= right + 1 && top - 1 <= box.top;
}"""


class NoBrowser(Exception):
    """There is no Chromium, or nothing to drive it with."""


@contextlib.contextmanager
def chromium():
    """Playwright keeps an event loop running meanwhile, which others cannot have beside theirs: no
    `Server.run` in here.
    """
    program = os.environ.get("KEEPSAKE_CHROMIUM") or next(
        filter(None, map(shutil.which, CHROMIUM)), None
    )
    if program is None:
        raise NoBrowser(
            "no Chromium found; install one (on Debian: apt-get install chromium), or name its "
            "program in KEEPSAKE_CHROMIUM"
        )
    try:
        from playwright.sync_api import (
            sync_playwright,  # here: `--help` of the commands works before anything is installed
        )
    except ImportError:
        raise NoBrowser("the Python package playwright is missing") from None
    with sync_playwright() as playwright:
        # As root, Chromium's own sandbox does not start; the page is ours and local.
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        yield browser
        browser.close()


def open_page(browser, server, vue_nodes=True, **context):
    """The page as a user finds it, drawn by either of the frontend's node renderers."""
    server.ask(
        "/settings",
        {
            "Comfy.TutorialCompleted": True,
            "Comfy.VueNodes.Enabled": vue_nodes,
            "Comfy.Minimap.Visible": False,
        },
    )
    page = Page(
        browser.new_context(viewport={"width": 1600, "height": 1000}, **context).new_page(), server
    )
    page.visit()
    return page


class Page:
    """One tab. `faults` are the errors of our own files."""

    def __init__(self, tab, server):
        self.tab, self.server, self.faults = tab, server, []
        tab.set_default_timeout(WAIT_MS)
        tab.on("pageerror", lambda error: self.faults.append(f"{error} {error.stack}"))
        tab.on("console", self._listen)
        tab.on(
            "response",
            lambda answer: (
                self._note(answer.url, f"answer {answer.status}") if answer.status >= 400 else None
            ),
        )

    def _listen(self, message):
        if message.type == "error":
            self._note(message.location.get("url", ""), message.text)

    def _note(self, url, text):
        """The host's page has errors of its own, for instance about a gallery that is not
        installed; ours are those of our files. For a node's help it asks for
        docs/<NodeId>/<language>.md first.
        """
        if ("/extensions/keepsake" in url or "keepsake" in text.lower()) and not re.search(
            r"/docs/\w+/\w+\.md$", url
        ):
            self.faults.append(f"{url}: {text}")

    def visit(self):
        self.tab.goto(self.server.url)
        self.tab.wait_for_function(READY)

    def reload(self):
        self.tab.reload()
        self.tab.wait_for_function(READY)

    def open(self, name, latent_frames=None):
        """Open a shipped workflow as the template browser does; shorter or longer than it ships,
        where asked for.
        """
        answer = self.tab.evaluate(
            "name => fetch(`/api/workflow_templates/keepsake/${name}.json`).then(answer => "
            "answer.json())",
            name,
        )
        for node in answer["nodes"] if latent_frames else ():
            if node["type"] == "EmptyARVideoLatent":
                node["widgets_values"][2] = 4 * (latent_frames - 1) + 1
        self.tab.evaluate(
            "([workflow, name]) => app.loadGraphData(workflow, true, true, name)", [answer, name]
        )

    def open_graph(self, graph):
        """Open a graph in API format; the page puts its nodes somewhere, and widgets that are not
        named stand as they come.
        """
        self.tab.evaluate("graph => app.loadApiJson(graph, 'graph')", graph)

    def run(self):
        """Press the button; the queued prompt's id."""
        with self.tab.expect_response(
            lambda answer: answer.request.method == "POST" and answer.url.endswith("/prompt")
        ) as answer:
            self.tab.get_by_test_id("queue-button").click()
        queued = answer.value.json()
        assert "prompt_id" in queued, queued
        return queued["prompt_id"]

    def result(self, prompt_id):
        """Wait for a run's end; its `ui` output by node class."""
        for _ in range(WAIT_MS // 200):
            if run := self.server.ask(f"/history/{prompt_id}").get(prompt_id):
                break
            self.tab.wait_for_timeout(200)
        else:
            raise AssertionError(f"the run has not ended in {WAIT_MS // 1000} seconds")
        assert run["status"]["status_str"] == "success", run["status"]["messages"][-1]
        return {
            run["prompt"][2][node_id]["class_type"]: output
            for node_id, output in run["outputs"].items()
        }

    def node(self, node_class):
        """A JavaScript expression for the first node of a class."""
        return f"app.graph.nodes.find(node => node.type === {json.dumps(node_class)})"

    def panel(self, node_class, name, text):
        """Our widget on a node: visible, in its place and with a text in it."""
        self.tab.wait_for_function(
            f"{self.node(node_class)}?.widgets?.find(widget => widget.name === '{name}')"
            f"?.element.textContent.includes({json.dumps(text)})"
        )
        shown = self.tab.evaluate_handle(
            f"{self.node(node_class)}.widgets.find(widget => widget.name === '{name}').element"
        ).as_element()
        shown.wait_for_element_state("visible")
        node = self.tab.evaluate_handle(self.node(node_class))
        self.tab.wait_for_function(IS_ON_ITS_NODE, arg=[node, shown])
        return shown

    def picture(self, numbers):
        """Of nodes as the Vue renderer draws them, in view: a PNG cut to them."""
        boxes = [
            self.tab.locator(f'[data-node-id="{number}"]').bounding_box() for number in numbers
        ]
        left, top = (min(box[side] for box in boxes) for side in "xy")
        right, bottom = (
            max(box[side] + box[length] for box in boxes)
            for side, length in (("x", "width"), ("y", "height"))
        )
        return self.tab.screenshot(
            clip={
                "x": left - 8,
                "y": top - 8,
                "width": right - left + 16,
                "height": bottom - top + 16,
            }
        )

    def close(self):
        self.tab.context.close()
