"""A headless ComfyUI with this pack in it, for as long as a `with` block runs.

with Server(host) as server:
    entry = server.run(graph, on_progress=lambda node_id, node_class, value, total: ...)
"""

import asyncio
import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 180  # on two busy cores it takes 10

# Runs main.py and ends when the pipe on its standard input closes: that happens however we end,
# kill -9 included.
BOOT = """
import os, runpy, sys, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""

# No proxy, whatever the environment says: the server is on this machine.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServerError(Exception):
    """The server did not start, or ended by itself."""


class GraphError(Exception):
    """A node refused its inputs, or failed."""

    def __init__(self, node_id, node_class, message, traceback=""):
        super().__init__(f"{node_class} (node {node_id}): {message}" if node_class else message)
        self.node_id, self.node_class, self.message, self.traceback = (
            node_id,
            node_class,
            message,
            traceback,
        )


class Interrupted(GraphError):
    """The run was cancelled."""


def has_cuda():
    """Asked of the driver: asking torch takes seconds."""
    driver = shutil.which("nvidia-smi")
    return bool(driver) and b"GPU" in subprocess.run([driver, "-L"], capture_output=True).stdout


class Server:
    """One ComfyUI process with a base folder of its own, so with models, custom nodes, inputs and
    outputs of its own.

    `base` names that folder, to keep; without it, it is temporary. `cpu=None` uses a CUDA device if
    there is one. `options` go on to main.py. `echo` sends the log to our own output instead of
    `server.log` in the base folder.
    """

    def __init__(
        self, host, python=sys.executable, *, base=None, port=0, cpu=None, options=(), echo=False
    ):
        self.host, self.python, self.options, self.echo = Path(host), python, options, echo
        self.port = free_port(port)
        self.url = f"http://127.0.0.1:{self.port}"
        self.temporary = base is None
        self.base = Path(base or tempfile.mkdtemp(prefix="keepsake-")).resolve()
        self.log = self.base / "server.log"
        self.link = self.base / "custom_nodes/keepsake"
        self.cpu = not has_cuda() if cpu is None else cpu
        self.process = None

    def __enter__(self):
        try:
            self._start()
            self._wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception):
        if self.process:
            self.process.stdin.close()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.temporary:
            shutil.rmtree(self.base, ignore_errors=True)

    def _start(self):
        for folder in ("custom_nodes", "models", "input", "output", "user"):
            (self.base / folder).mkdir(parents=True, exist_ok=True)
        self.link.unlink(missing_ok=True)
        self.link.symlink_to(ROOT)
        # In memory, since the default database lies in the host's folder and is locked by the first
        # server to use it.
        options = ["--listen", "127.0.0.1", "--port", str(self.port)]
        options += ["--database-url", "sqlite:///:memory:", "--disable-api-nodes"]
        options += ["--base-directory", self.base, *(["--cpu"] if self.cpu else []), *self.options]
        # A session of its own: Ctrl-C reaches us alone, and we stop the server in order.
        with contextlib.nullcontext() if self.echo else open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [self.python, "-c", BOOT, self.host / "main.py", *options],
                cwd=self.base,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _wait_until_ready(self):
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.version = self.ask("/system_stats")["system"]["comfyui_version"]
                break
            except OSError:
                time.sleep(0.2)
            if self.process.poll() is not None:
                raise ServerError(
                    f"ComfyUI in {self.host} ended while starting. {self._log_tail()}"
                )
            if time.monotonic() > deadline:
                raise ServerError(
                    f"ComfyUI in {self.host} gave no answer in {START_SECONDS} s. "
                    f"{self._log_tail()}"
                )
        if not self.echo and f"(IMPORT FAILED): {self.link}" in self.log.read_text(
            errors="replace"
        ):
            raise ServerError(
                f"ComfyUI {self.version} could not import the pack. {self._log_tail()}"
            )

    def _log_tail(self):
        if self.echo:
            return "Its log is above."
        plain = re.sub(r"\033\[[\d;]*m", "", self.log.read_text(errors="replace"))
        return "Its log ends with:\n" + "\n".join(plain.splitlines()[-40:])

    def ask(self, path, body=None):
        """The JSON answer to a GET, or to a POST of `body`; None where the server answers without
        one.
        """
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/json"}
        )
        with OPENER.open(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def required(self, node_class):
        """The required inputs of a node: their types, and what else there is to know."""
        return self.ask(f"/object_info/{node_class}")[node_class]["input"].get("required", {})

    def widgets(self, node_class):
        """The required widgets of a node and what stands in them by default."""
        return {
            name: options[0]["default"]
            for name, (_, *options) in self.required(node_class).items()
            if options and "default" in options[0]
        }

    def queue(self, graph, client_id=""):
        """Queue a graph in API format and return its prompt's id."""
        try:
            answer = self.ask("/prompt", {"prompt": graph, "client_id": client_id})
        except urllib.error.HTTPError as error:
            answer = json.load(error)
        if answer.get("error") or answer.get("node_errors"):
            # With a wrong node the host still runs the outputs that do not depend on it; half a
            # graph is no use to us.
            if prompt_id := answer.get("prompt_id"):
                self.cancel(prompt_id)
            raise refusal(answer)
        return answer["prompt_id"]

    def run(self, graph, on_progress=None):
        """Run a graph to its end and return its entry in the history: `outputs` by node id,
        `status`, `prompt`.

        `on_progress(node_id, node_class, value, total)` is called as nodes start and move on.
        """
        return asyncio.run(self._run(graph, on_progress))

    async def _run(self, graph, on_progress):
        import aiohttp  # here: `--help` of the commands works before anything is installed

        client_id = uuid.uuid4().hex
        failure = None
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"{self.url}/ws?clientId={client_id}", max_msg_size=0) as messages,
        ):
            prompt_id = self.queue(graph, client_id)
            async for message in messages:
                if message.type != aiohttp.WSMsgType.TEXT:  # a preview picture
                    continue
                event = json.loads(message.data)
                kind, data = event["type"], event["data"]
                if data.get("prompt_id") != prompt_id:
                    continue
                if kind == "progress_state" and on_progress:
                    for state in data["nodes"].values():
                        if state["state"] == "running":
                            node_id = state["display_node_id"]
                            on_progress(
                                node_id, graph[node_id]["class_type"], state["value"], state["max"]
                            )
                elif kind == "execution_error":
                    failure = GraphError(
                        data["node_id"],
                        data["node_type"],
                        data["exception_message"].strip(),
                        "".join(data["traceback"]),
                    )
                elif kind == "execution_interrupted":
                    failure = Interrupted(data["node_id"], data["node_type"], "interrupted")
                elif kind == "executing" and data["node"] is None:
                    break
            else:
                raise ServerError(f"ComfyUI ended during the run. {self._log_tail()}")
        if failure:
            raise failure
        return self.ask(f"/history/{prompt_id}")[prompt_id]

    def interrupt(self):
        """Cancel what is running; `run` then raises Interrupted. For another thread, or for
        `on_progress`.
        """
        self.ask("/interrupt", {})

    def cancel(self, prompt_id):
        self.ask("/queue", {"delete": [prompt_id]})
        self.ask("/interrupt", {"prompt_id": prompt_id})

    def free(self):
        """Unload the models and forget the cached results; the server does so in its own time."""
        self.ask("/free", {"unload_models": True, "free_memory": True})

    def file(self, item):
        """Where a file from a node's output (`filename`, `subfolder`, `type`) lies."""
        return self.base / item["type"] / item["subfolder"] / item["filename"]

    def values(self, output, key):
        """The JSON in the file that a node's output names under `key`."""
        return json.loads(self.file(output[key][0]).read_text(encoding="utf-8"))


def free_port(port):
    """`port` itself when it is free, any free one for 0. Checked here, or a server already there
    would answer us.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ServerError(
                f"Port {port} cannot be used ({error.strerror}); choose another with --port."
            ) from None
        return probe.getsockname()[1]


def refusal(answer):
    """The first thing that the server found wrong with a graph."""
    for node_id, node in answer["node_errors"].items():
        reasons = "; ".join(f"{error['message']}: {error['details']}" for error in node["errors"])
        return GraphError(node_id, node["class_type"], reasons)
    error = answer["error"]
    return GraphError(
        error["extra_info"].get("node_id"), error["extra_info"].get("class_type"), error["message"]
    )
