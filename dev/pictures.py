"""Make the pictures of the help pages anew, into web/docs, from real runs of the demo world.

A policy's picture is what one same walk left in memory, as KV Memory Map shows it; another node's
is that node on the page, after a run.
"""

import argparse
import io
import json
import sys

import frontend
import setup
from server import GraphError, Server, ServerError
from support.browser import NoBrowser, chromium, open_page

DOCS = setup.ROOT / "web/docs"
MODEL_FILE = setup.ROOT / "demo/weights/demo_world.safetensors"
LONGEST = 1600  # pixels of a picture's longer side, at most
QUALITY = 82  # WebP's, of 100


def node(node_class, **inputs):
    return {"class_type": node_class, "inputs": inputs}


def sampler(**changes):
    """The walk's own, changed."""
    return node("KeepsakeARVideoSampler", **WALK["6"]["inputs"] | changes)


# A walk like the quickstart's up to its decoded frames (node 7), in half the length and steps. Node
# 5 is the policy.
WALK = {
    number: graph_node
    for number, graph_node in json.loads(
        (setup.ROOT / "workflows/api/quickstart.json").read_text()
    ).items()
    if int(number) <= 7
}
WALK["3"]["inputs"]["length"], WALK["4"]["inputs"]["away_frames"], WALK["6"]["inputs"]["steps"] = (
    93,
    11,
    4,
)
LATENT, CONTROL, IMAGES, STATS = ["3", 0], ["4", 0], ["7", 0], ["6", 1]
MODEL, CLIP, VAE, POSITIVE, POLICY = ["1", 0], ["1", 1], ["1", 2], ["2", 0], ["5", 0]

DECOPRUNE = node("KeepsakePolicyDeCoPrune", mode="threshold", gamma=0.02)
SPLIT = {
    "8": node("KeepsakeLoadHeadMap", head_map="demo_world.json"),
    "9": node("KeepsakePolicyDeCoPrune", mode="threshold", gamma=0.02, head_map=["8", 0]),
    "5": node("KeepsakePolicyDirectedForcing", kv_policy=["9", 0]),
}

# The walk's first 16 latent frames are made apart, and given to it.
GIVEN = {
    "13": node("EmptyARVideoLatent", width=128, height=64, length=61, batch_size=1),
    "14": node("KeepsakeDemoCamera", latent=["13", 0], away_frames=11),
    "15": sampler(latent=["13", 0], control=["14", 0]),
    "6": sampler(prefix=["15", 0]),
}

FEW_STEPS = {"8": node("KeepsakeARProfile", model=MODEL, steps=2, shift=3)}

# By picture: the nodes of its policy. A policy that is not named here shows its defaults.
FILMS = {page.stem: {"5": node(page.stem)} for page in sorted(DOCS.glob("KeepsakePolicy*.md"))} | {
    "KeepsakePolicySinkWindow": {"5": node("KeepsakePolicySinkWindow", window_frames=9)},
    "KeepsakePolicyDeepSink": {"5": node("KeepsakePolicyDeepSink", window_frames=9, sink_frames=5)},
    "KeepsakePolicyDeepForcing": {
        "5": node("KeepsakePolicyDeepForcing", window_frames=12, budget_frames=10, sink_frames=4)
    },
    "KeepsakePolicyDeCoPrune": {"5": DECOPRUNE},
    "KeepsakePruningControl": {
        "8": DECOPRUNE,
        "5": node("KeepsakePruningControl", kv_policy=["8", 0]),
    },
    "KeepsakePolicyForcingKV": {
        "8": node("KeepsakeLoadHeadMap", head_map="demo_world.json"),
        "5": node("KeepsakePolicyForcingKV", head_map=["8", 0]),
    },
    "KeepsakePolicyFlashForward": {"5": node("KeepsakePolicyFlashForward", stage_history=1)},
    "KeepsakePolicyHierarchical": {"5": node("KeepsakePolicyHierarchical", window_frames=9)},
    "KeepsakePolicyRollingForcing": {"5": node("KeepsakePolicyRollingForcing", window_frames=15)},
    "KeepsakePolicyRollingSink": {"5": node("KeepsakePolicyRollingSink", window_frames=12)},
    "KeepsakePolicyTempDiff": GIVEN | {"5": node("KeepsakePolicyTempDiff")},
    "KeepsakePolicyWorldKV": {
        "5": node("KeepsakePolicyWorldKV", retrieved_frames=3, recent_frames=3)
    },
    "KeepsakeKVMemoryMap_film": SPLIT,
}
FILM = {
    "10": node("KeepsakeKVMemoryMap", images=IMAGES, kv_stats=STATS, show="chunk by chunk"),
    "11": node("ImageFromBatch", image=["10", 0], batch_index=-1, length=1),
    "12": node("PreviewImage", images=["11", 0]),
}

# By picture: the nodes that it shows, 20 and 21, and those they need beside the walk. Widgets that
# are not named stand as they come.
SHOTS = {
    "KeepsakeARVideoModelLoader": {"20": node("KeepsakeARVideoModelLoader")},
    "KeepsakeARProfile": {
        "20": node("KeepsakeARProfile", model=MODEL, profile="Self-Forcing (chunk-wise)")
    },
    "KeepsakeARVideoSamplerSelect": {
        "20": node("KeepsakeARVideoSamplerSelect", kv_policy=POLICY, control=CONTROL)
    },
    "KeepsakeDemoWorld": {
        "20": node("KeepsakeDemoWorld"),
        "8": node("ImageFromBatch", image=IMAGES, batch_index=40, length=1),
        "9": node("ImageScaleBy", image=["8", 0], upscale_method="nearest-exact", scale_by=4.0),
        "21": node("PreviewImage", images=["9", 0]),
    },
    "KeepsakeWorldCamera": {
        "20": node("KeepsakeWorldCamera", latent=LATENT, path="keys", keys="w-40,dj-120,s-40")
    },
    "KeepsakeDemoCamera": {"20": node("KeepsakeDemoCamera", latent=LATENT, away_frames=22)},
    "KeepsakeWorldActions": {"20": node("KeepsakeWorldActions", latent=LATENT)},
    "KeepsakeKVMemoryStats": {"20": node("KeepsakeKVMemoryStats", kv_stats=STATS)},
    "KeepsakeKVMemoryMap": SPLIT
    | {
        "4": node(
            "KeepsakeDemoCamera", latent=LATENT, away_frames=16
        ),  # its middle is then partly kept
        "20": node("KeepsakeKVMemoryMap", images=IMAGES, kv_stats=STATS),
    },
    "KeepsakeKVMemoryEstimate": {
        "20": node(
            "KeepsakeKVMemoryEstimate",
            model=MODEL,
            latent=LATENT,
            kv_policy=POLICY,
            kv_stats=STATS,
            steps=4,
        )
    },
    "KeepsakeKVStorage": {
        "20": node("KeepsakeKVStorage", dtype="int4"),
        "6": sampler(kv_policy=["20", 0]),
        "21": node("KeepsakeKVMemoryStats", kv_stats=STATS),
    },
    "KeepsakePromptTimeline": {
        "20": node(
            "KeepsakePromptTimeline",
            clip=CLIP,
            text="0: old town at day\n24: old town at sunset\n9s: old town at night",
        )
    },
    "KeepsakePromptAtFrame": {
        "20": node(
            "KeepsakePromptAtFrame",
            conditioning=POSITIVE,
            next=POSITIVE,
            start_frame=24,
            mode="recache",
        )
    },
    "KeepsakeSaveKVMemory": {
        "6": sampler(keep_memory=True, stop_after=12),
        "20": node("KeepsakeSaveKVMemory", kv_memory=["6", 2]),
    },
    "KeepsakeLoadKVMemory": {"20": node("KeepsakeLoadKVMemory")},  # of what the one before saved
    "KeepsakeStreamToFile": {"20": node("KeepsakeStreamToFile", vae=VAE)},
    "KeepsakeLoadHeadMap": {"20": node("KeepsakeLoadHeadMap")},
    "KeepsakeLoadHeadTable": {"20": node("KeepsakeLoadHeadTable")},
    "KeepsakeProfileHeads": FEW_STEPS
    | {
        "20": node(
            "KeepsakeProfileHeads",
            model=["8", 0],
            positive=POSITIVE,
            latent=LATENT,
            control=CONTROL,
        )
    },
    "KeepsakeCalibrateHeads": FEW_STEPS
    | {  # a take for each head, so two chunks must do
        "9": node("EmptyARVideoLatent", width=128, height=64, length=21, batch_size=1),
        "10": node("KeepsakeDemoCamera", latent=["9", 0]),
        "20": node(
            "KeepsakeCalibrateHeads",
            model=["8", 0],
            positive=POSITIVE,
            latent=["9", 0],
            control=["10", 0],
        ),
    },
}
QUICKSTART = "KeepsakeARVideoSampler"

PUT_IN_A_ROW = """numbers => {
  let x = 0;
  for (const number of numbers) {
    const node = app.graph.getNodeById(number);
    node.setSize([Math.max(node.size[0], 420 / numbers.length), node.size[1]]);
    node.pos = [x, 6000];
    x += node.size[0] + 20;
  }
  // links would lead to nodes out of the picture
  app.canvas.links_render_mode = LiteGraph.HIDDEN_LINK;
}"""
LISTEN = """() => {
  window.ended = new Promise((done) =>
    app.api.addEventListener("execution_success", done, { once: true }));
}"""
LOOK_AT = """numbers => {
  const nodes = numbers.map((number) => app.graph.getNodeById(number));
  const { ds } = app.canvas;
  const [left, top] = [0, 1].map((axis) => Math.min(...nodes.map((node) => node.pos[axis])));
  const right = Math.max(...nodes.map((node) => node.pos[0] + node.size[0]));
  ds.scale = Math.min(1, 1400 / (right - left));
  ds.offset = [100 / ds.scale - left, 220 / ds.scale - top];
  app.canvas.setDirty(true, true);
}"""


def make_films(server, names):
    for name in names:
        graph = WALK | FILMS[name] | FILM
        for graph_node in graph.values():
            graph_node["inputs"] = server.widgets(graph_node["class_type"]) | graph_node["inputs"]
        (item,) = server.run(graph)["outputs"]["12"]["images"]
        keep(name, in_fours(opened(server.file(item).read_bytes())))


def make_shots(server, page, names):
    models = server.base / "models/diffusion_models"  # what the loader lists
    models.mkdir(exist_ok=True)
    (models / MODEL_FILE.name).symlink_to(MODEL_FILE)
    for name in names:
        # anew: its lists of files are as new as it is, and it knows no older widgets and results
        page.visit()
        if name == QUICKSTART:
            page.open("quickstart")
            shown = page.tab.evaluate("app.graph.nodes.map(node => node.id)")
        else:
            # Something behind the node, so that it runs.
            page.open_graph(
                WALK | {"5": DECOPRUNE} | SHOTS[name] | {"30": node("PreviewAny", source=["20", 0])}
            )
            shown = [int(number) for number in ("20", "21") if number in SHOTS[name]]
            page.tab.evaluate(PUT_IN_A_ROW, shown)
        page.tab.evaluate(LISTEN)
        page.result(page.run())
        page.tab.evaluate("window.ended")
        page.tab.evaluate(LOOK_AT, shown)
        page.tab.wait_for_load_state("networkidle")
        page.tab.wait_for_function(
            "[...document.querySelectorAll('video')].every(video => video.readyState > 3)"
        )
        keep(name, opened(page.picture(shown)))


def opened(png):
    from PIL import Image  # here: `--help` works before anything is installed

    return Image.open(io.BytesIO(png)).convert("RGB")


def in_fours(film):
    """The film's rows of eight pictures of 2:1 as rows of four, since a help page is as narrow as a
    sidebar; what is below them is squeezed.
    """
    half, height = film.width // 2, film.width // 16
    rows, below = divmod(film.height, height)
    out = film.resize((half, below), box=(0, rows * height, film.width, film.height))
    out = out.crop((0, -2 * rows * height, half, below))
    for place in range(2 * rows):
        row, side = divmod(place, 2)
        out.paste(
            film.crop((side * half, row * height, (side + 1) * half, (row + 1) * height)),
            (0, place * height),
        )
    return out


def keep(name, picture):
    """Write a picture, made smaller where it is too large."""
    picture.thumbnail((LONGEST, LONGEST))
    path = DOCS / f"{name}.webp"
    picture.save(path, quality=QUALITY, method=6)
    print(
        f"{path.relative_to(setup.ROOT)}  {picture.width}x{picture.height}  "
        f"{path.stat().st_size / 1000:.0f} kB",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(
        prog="dev/pictures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"which, if not all: {', '.join([*FILMS, QUICKSTART, *SHOTS])}",
    )
    names = parser.parse_args().names or [*FILMS, QUICKSTART, *SHOTS]
    if unknown := set(names) - {*FILMS, QUICKSTART, *SHOTS}:
        parser.error(
            f"there is no picture {', '.join(unknown)}; there are: "
            f"{', '.join([*FILMS, QUICKSTART, *SHOTS])}"
        )
    host = setup.needed_host()
    try:
        with Server(host, cpu=True, options=frontend.options(host)) as server:
            make_films(server, [name for name in FILMS if name in names])
            with chromium() as browser:
                page = open_page(browser, server, device_scale_factor=2)
                make_shots(server, page, [name for name in (QUICKSTART, *SHOTS) if name in names])
    except (GraphError, ServerError, NoBrowser, setup.SetupError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
