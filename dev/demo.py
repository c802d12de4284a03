"""Make one take in a real ComfyUI, from the graph in workflows/api/quickstart.json, and collect all
that it leaves.

A progress bar, then the files in --out, then one JSON line with their paths and the figures of the
run.
"""

import argparse
import json
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import setup
from server import GraphError, Server, ServerError

GRAPH = setup.ROOT / "workflows/api/quickstart.json"

SAMPLER = "KeepsakeARVideoSampler"
LATENT = "EmptyARVideoLatent"
LONG_LATENT, LATENT_FRAMES = (
    "EmptyHunyuanLatentVideo",
    256,
)  # the same latent, and the length at which the former stops
POLICY = "KeepsakePolicy"  # what the class of every policy node starts with

# What the graph must yield: file in --out <- node class, key in its output.
FILES = {
    "take.mp4": ("SaveVideo", "images"),
    "kv_stats.png": ("KeepsakeKVMemoryStats", "images"),
    "kv_stats.json": ("KeepsakeKVMemoryStats", "kv_stats_file"),
    "take.latent": ("SaveLatent", "latents"),
}


def node_of(graph, node_class):
    """The id of the one node of a class."""
    found = [node_id for node_id, node in graph.items() if node["class_type"] == node_class]
    if len(found) != 1:
        sys.exit(
            f"{GRAPH} has {len(found)} nodes of class {node_class}, and this command needs "
            "exactly one."
        )
    return found[0]


def choose_policy(graph, name, server):
    """Make the policy node that feeds the sampler one of class `name`, at its defaults if it was
    another.
    """
    policies = {
        re.sub(r"[^a-z0-9]+", "_", about["display_name"].lower().removeprefix("kv policy: ")).strip(
            "_"
        ): node_class
        for node_class, about in server.ask("/object_info").items()
        if node_class.startswith(POLICY)
    }
    asked = [
        node_class
        for file_name, node_class in policies.items()
        if file_name.replace("_", "").startswith(name.lower().replace("_", ""))
    ]
    if len(asked) != 1:
        sys.exit(f"--policy is {name}, but the policies are: {', '.join(sorted(policies))}.")
    node = graph[graph[node_of(graph, SAMPLER)]["inputs"]["kv_policy"][0]]
    if node["class_type"] != asked[0]:
        before = {key: link for key, link in node["inputs"].items() if key == "kv_policy"}
        inputs = before | server.widgets(asked[0])
        if lacks := server.required(asked[0]).keys() - inputs.keys():
            sys.exit(
                f"--policy is {name}, which needs another node at {', '.join(sorted(lacks))}; this "
                "graph has none. Open the workflow field in dev/serve, or choose another policy."
            )
        node["class_type"], node["inputs"] = asked[0], inputs


class Bar:
    """Progress of the nodes that count steps: one moving line on a terminal, elsewhere a line every
    ten seconds.
    """

    def __init__(self):
        self.start = self.shown = time.monotonic()
        self.moving = sys.stdout.isatty()

    def __call__(self, node_id, node_class, value, total):
        now = time.monotonic()
        if total <= 1 or (not self.moving and now - self.shown < 10 and value < total):
            return
        self.shown = now
        done = int(30 * value / total)
        bar = "#" * done + "." * (30 - done)
        line = f"{node_class}  [{bar}] {value:.0f}/{total:.0f}  {now - self.start:.0f} s"
        if self.moving:
            print(f"\r{line}\033[K", end="", flush=True)
        else:
            print(line, flush=True)

    def close(self):
        if self.moving:
            print()


def outputs_of(entry, graph, node_class, key):
    found = entry["outputs"].get(node_of(graph, node_class), {}).get(key)
    if not found:
        sys.exit(f"The run ended, but its {node_class} node left no `{key}`.")
    return found[0]


def main():
    parser = argparse.ArgumentParser(prog="dev/demo", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=setup.ROOT / "output/demo", help="folder for the results"
    )
    parser.add_argument(
        "--policy",
        help="what to keep of the past: full, sink_window, decoprune, deep_sink, ...; a wrong name "
        "lists them all (default: as in the graph)",
    )
    parser.add_argument(
        "--frames", type=int, help="length of the take in latent frames (default: as in the graph)"
    )
    parser.add_argument("--seed", type=int, help="noise seed (default: as in the graph)")
    arguments = parser.parse_args()
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # as Ctrl-C: either passes through the `with`

    graph = json.loads(GRAPH.read_text())
    if arguments.frames is not None:
        if arguments.frames < 1:
            parser.error(
                f"--frames is {arguments.frames}, but a take has at least one latent frame"
            )
        latent = graph[node_of(graph, LATENT)]
        latent["inputs"]["length"] = 4 * (arguments.frames - 1) + 1
        latent["class_type"] = LATENT if arguments.frames <= LATENT_FRAMES else LONG_LATENT
    if arguments.out.is_file():
        parser.error(f"--out is {arguments.out}, which is a file; name a folder")
    if arguments.seed is not None:
        if arguments.seed < 0:
            parser.error(f"--seed is {arguments.seed}, but a seed is 0 or more")
        graph[node_of(graph, SAMPLER)]["inputs"]["seed"] = arguments.seed
    try:
        take(graph, arguments)
    except KeyboardInterrupt:
        sys.exit("\nInterrupted; the server has been stopped.")
    except (GraphError, ServerError) as error:
        sys.exit(str(error))


def take(graph, arguments):
    host, out = setup.needed_host(), arguments.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    print("starting ComfyUI ...", flush=True)
    with Server(host, cpu=True) as server:
        print(f"ComfyUI {server.version} on the CPU", flush=True)
        if arguments.policy:
            choose_policy(graph, arguments.policy, server)
        bar, start = Bar(), time.monotonic()
        try:
            entry = server.run(graph, bar)
        finally:
            bar.close()
        seconds = time.monotonic() - start
        for name, (node_class, key) in FILES.items():
            shutil.copyfile(server.file(outputs_of(entry, graph, node_class, key)), out / name)
    stats = json.loads((out / "kv_stats.json").read_text())
    (out / "kv_stats.json").write_text(json.dumps(stats, indent=1) + "\n")  # for a reader
    print(
        json.dumps(
            {
                "video": str(out / "take.mp4"),
                "stats": str(out / "kv_stats.json"),
                "plot": str(out / "kv_stats.png"),
                "latents": str(out / "take.latent"),
                "frames": stats["frames"],
                "seconds": round(seconds, 2),
                "peak_cache_bytes": stats["peak_cache_bytes"],
                "prune_ratio": stats["prune_ratio"],
                "host": server.version,
            }
        )
    )


if __name__ == "__main__":
    main()
