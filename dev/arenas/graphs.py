"""What makes the takes of a row, as a graph in API format: from flags, or from a workflow file.

A row is a checkpoint with its profile and one policy. The nodes of its graph run once, and rows
share those that are the same, so a checkpoint is loaded once for all policies.
"""

import hashlib
import json
import os
import re
from pathlib import Path
from typing import NamedTuple

import folder_paths
from support.pack import load_file

from .flags import DEMO
from .node_run import class_of, defaults_of, inputs_of, is_link, own_classes

SAMPLER = "KeepsakeARVideoSampler"
LOADERS = {"head_map": "KeepsakeLoadHeadMap", "head_table": "KeepsakeLoadHeadTable"}
OUR_LINKS = {"latent"}  # of the sampler's, what each take brings

WITHOUT_POLICY = "profile"
LONGEST = 100  # characters of a row's name, which is a folder's


class Row(NamedTuple):
    """A graph, and what it is called."""

    name: str  # safe as a folder's
    graph: dict
    sampler: dict  # the inputs of its sampler node

    def settings(self, protocol: NamedTuple) -> dict:
        """What all takes of a folder have in common."""
        return {"graph": self.graph, "protocol": protocol._asdict()}

    def link(self, name: str):
        """Of the sampler's input; None where nothing is connected."""
        value = self.sampler.get(name)
        return value if is_link(value) else None


def use_model_folders():
    """As ComfyUI's own start: the folders that extra_model_paths.yaml names."""
    host = Path(os.environ["COMFYUI_PATH"])
    named = host / "extra_model_paths.yaml"
    if named.is_file():
        # By its file: older hosts put a folder with another `utils` in front of theirs.
        config = load_file("keepsake_extra_config", host / "utils/extra_config.py")
        config.load_extra_path_config(str(named))


def rows_of(args) -> list[Row]:
    """A row for each policy that the flags name. ValueError, in a sentence, for what cannot be."""
    # 1. All but the policy.
    if args.workflow:
        graph = read_workflow(Path(args.workflow))
        own_name = Path(args.workflow).stem
    elif args.checkpoint:
        graph, own_name = graph_of_flags(args), WITHOUT_POLICY
    else:
        raise ValueError(
            "Neither --checkpoint nor --workflow is given. Name a checkpoint's file (demo is the "
            "small model that ships), or a graph in API format."
        )
    # 2. The policies: the graph's own, or those of the chains.
    rows = []
    for chain in args.policy or [own_name]:
        ours = json.loads(json.dumps(graph))
        sampler = sampler_of(ours)["inputs"]
        if args.policy:
            sampler.pop("kv_policy", None)
            if chain != WITHOUT_POLICY:
                add_chain(ours, sampler, chain)
        rows.append(Row(safe(chain), ours, sampler))
    names = [row.name for row in rows]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"--policy names {', '.join(sorted(twice))} twice. Name each once.")
    return rows


def safe(text: str) -> str:
    """A text as the name of a file or folder."""
    name = re.sub(r"[^A-Za-z0-9.=,+-]+", "_", text).strip("._") or "row"
    if len(name) > LONGEST:
        name = f"{name[:LONGEST]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return name


def graph_of_flags(args) -> dict:
    """Loaders, a prompt and the sampler, without a policy."""
    if args.checkpoint == DEMO:
        graph = {"model": node("KeepsakeDemoWorld")}
        model, clip, vae = ["model", 0], ["model", 1], ["model", 2]
    else:
        graph = {
            "model": node(
                "KeepsakeARVideoModelLoader",
                model_name=file_name("diffusion_models", args.checkpoint),
                profile=args.profile,
                weight_dtype=args.weight_dtype,
                lora_name=args.lora,
            ),
            "clip": node(
                "CLIPLoader", clip_name=file_name("text_encoders", args.text_encoder), type="wan"
            ),
            "vae": node("VAELoader", vae_name=file_name("vae", args.vae)),
        }
        model, clip, vae = ["model", 0], ["clip", 0], ["vae", 0]
    graph["prompt"] = node("CLIPTextEncode", clip=clip, text="")
    graph["decode"] = {"class_type": "VAEDecode", "inputs": {"samples": ["take", 0], "vae": vae}}
    graph["take"] = node(SAMPLER, model=model, positive=["prompt", 0])
    return graph


def node(name: str, **values) -> dict:
    """A new node with these inputs, and defaults elsewhere. ValueError for a choice it lacks."""
    known = inputs_of(name)
    for key, value in values.items():
        kind = known[key][0]
        is_file = key in ("model_name", "clip_name", "vae_name", "lora_name")
        if isinstance(kind, list) and not is_file and value not in kind:
            raise ValueError(f"{key} is '{value}'. Use one of: {', '.join(map(str, kind))}.")
    inputs = {**defaults_of(name), **values}
    required = class_of(name).INPUT_TYPES().get("required", {})
    if missing := sorted(required.keys() - inputs.keys() - OUR_LINKS):
        raise ValueError(
            f"{name} needs {' and '.join(missing)}. In a chain, a head map or table is given by "
            "its name (head_map=...), and a kv_policy by a node before it; else use a workflow."
        )
    return {"class_type": name, "inputs": inputs}


def file_name(folder: str, name: str) -> str:
    """A model file as the host's loaders take it; the folder of a path becomes one of theirs. Its
    parent's name stays in it: a checkpoint may be recognised by that.
    """
    path = Path(name).absolute()
    if not path.is_file():
        return name
    folder_paths.add_model_folder_path(folder, str(path.parents[1]))
    return str(path.relative_to(path.parents[1]))


def add_chain(graph: dict, sampler: dict, chain: str):
    """Put the nodes of a chain into a graph and connect the last one to the sampler."""
    before = None
    for number, part in enumerate(filter(None, (part.strip() for part in chain.split("+")))):
        name, _, widgets = part.partition(":")
        kind = policy_class(name)
        values = read_widgets(kind, widgets)
        for key in LOADERS.keys() & values.keys():
            loader = f"policy {number} {key}"
            first = next(iter(inputs_of(LOADERS[key])))
            graph[loader] = node(LOADERS[key], **{first: values[key]})
            values[key] = [loader, 0]
        if before:
            values["kv_policy"] = before
        graph[f"policy {number}"] = node(kind, **values)
        before = [f"policy {number}", 0]
    sampler["kv_policy"] = before


def policy_classes() -> dict[str, str]:
    """The nodes that change a policy, by short name: KeepsakePolicySinkWindow is sinkwindow."""
    return {
        name.removeprefix("Keepsake").removeprefix("Policy").lower(): name
        for name, kind in own_classes().items()
        if [output.io_type for output in kind.define_schema().outputs] == ["KEEPSAKE_KV_POLICY"]
    }


def policy_class(name: str) -> str:
    known = policy_classes()
    short = re.sub(r"[^a-z0-9]", "", name.lower())
    if short not in known:
        raise ValueError(
            f"--policy names '{name}'. Use one of: {WITHOUT_POLICY}, {', '.join(sorted(known))}."
        )
    return known[short]


def read_widgets(kind: str, text: str) -> dict:
    """Values of a node's widgets from `name=value,name=value`; a head map or table by its name."""
    known = {
        key: sort
        for key, (sort, settings) in inputs_of(kind).items()
        if "default" in settings or key in LOADERS or isinstance(sort, list)
    }
    values = {}
    for part in filter(None, text.split(",")):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in known:
            raise ValueError(
                f"'{part}' is no setting of {class_of(kind).define_schema().display_name}. It has: "
                f"{', '.join(known)}."
            )
        try:
            values[key] = json.loads(value)
        except ValueError:
            values[key] = value
    return values


def read_workflow(path: Path) -> dict:
    """A graph in API format with one sampler of ours. ValueError, in a sentence, for others."""
    try:
        graph = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"--workflow is {path}, which cannot be read: {error}") from None
    is_graph = isinstance(graph, dict) and all(
        isinstance(each, dict) and "class_type" in each for each in graph.values()
    )
    if not is_graph:
        raise ValueError(
            f"{path} is no graph in API format, which has a class_type for each node. Export it "
            "with 'Export (API)' in ComfyUI's menu."
        )
    sampler_of(graph)
    vae_link(graph)
    return graph


def sampler_of(graph: dict) -> dict:
    """The one AR Video Sampler of a graph."""
    found = [each for each in graph.values() if each["class_type"] == SAMPLER]
    if len(found) != 1:
        raise ValueError(
            f"The graph has {len(found)} nodes AR Video Sampler, and one is needed: take the "
            "others out."
        )
    return found[0]


def vae_link(graph: dict) -> list:
    """Where the VAE comes from."""
    links = [each["inputs"].get("vae") for each in graph.values()]
    links = [link for link in links if is_link(link)]
    if len({tuple(link) for link in links}) != 1:
        raise ValueError(
            f"The graph has {len(links)} links to a VAE, and all must come from the same one. Let "
            "one VAE encode and decode."
        )
    return links[0]


def clip_link(graph: dict, link: list) -> list:
    """Where the text encoder of a conditioning comes from: of the first node before it that has
    one.
    """
    inputs = graph[link[0]]["inputs"]
    if is_link(inputs.get("clip")):
        return inputs["clip"]
    before = [value for value in inputs.values() if is_link(value)]
    for each in before:
        found = clip_link(graph, each)
        if found:
            return found
    return []
