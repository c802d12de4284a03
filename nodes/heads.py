"""Head maps (which heads look at the latest frames only) and head tables (how much each matters):
load, and measure.
"""

import torch
from comfy_api.latest import io

from ..host.files.names import plain_name
from ..host.files.results import named
from ..host.heads.calibrate import calibrate_heads
from ..host.heads.heads import (
    MAPS,
    TABLES,
    file_version,
    load_head_map,
    load_head_table,
    names_in,
    profile_heads,
)
from ..host.show.plots import plot_heads, save_preview
from .constants import accepts
from .inputs import control_input, file_name_input, policy_to_use, prefix_input, seed_input
from .sockets import CATEGORY, HeadMapSocket, HeadTableSocket


class LoadHeadMap(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakeLoadHeadMap",
            display_name="Load Head Map",
            category=CATEGORY,
            description="Reads which attention heads are static (they look at the latest frames "
            "only) and which are dynamic.",
            search_aliases=[
                "Forcing-KV head map",
                "static heads",
                "dynamic heads",
                "head-specialised",
            ],
            inputs=[
                io.Combo.Input(
                    "head_map",
                    options=names_in(MAPS),
                    tooltip="A JSON file in models/kv_head_maps, or one that Profile Heads wrote.",
                )
            ],
            outputs=[HeadMapSocket.Output(display_name="head_map")],
        )

    @classmethod
    def fingerprint_inputs(cls, head_map):
        return file_version(MAPS, head_map)

    @classmethod
    def execute(cls, head_map):
        return io.NodeOutput(load_head_map(head_map))


class ProfileHeads(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakeProfileHeads",
            display_name="Profile Heads",
            category=CATEGORY,
            is_output_node=True,
            description="Makes a head map of a model: samples takes with everything kept and "
            "measures, at the last chunk's first step, "
            "what share of its attention each head gives to the latest four frames.",
            search_aliases=["head map", "static heads", "Forcing-KV profiling", "calibrate heads"],
            inputs=[
                io.Model.Input("model"),
                io.Conditioning.Input("positive"),
                io.Latent.Input(
                    "latent",
                    tooltip="A video latent; each of its batch is one calibration take (the paper "
                    "used 15 videos).",
                ),
                seed_input(),
                io.Float.Input(
                    "static_share",
                    default=0.8,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                    tooltip="Heads that give at least this share to the latest four context "
                    "frames are static. 0.8 in the paper.",
                ),
                file_name_input("head_map", MAPS),
                prefix_input(),
                control_input(),
            ],
            outputs=[
                HeadMapSocket.Output(display_name="head_map"),
                io.String.Output(display_name="json"),
                io.Image.Output(display_name="plot"),
            ],
        )

    @classmethod
    def validate_inputs(cls, name=None):
        return accepts(cls, plain_name, name=name)

    @classmethod
    def execute(cls, model, positive, latent, seed, static_share, name, prefix=None, control=None):
        head_map, shares, path = profile_heads(
            model,
            positive,
            latent,
            seed=seed,
            static_share=static_share,
            name=name,
            prefix=prefix,
            control=control,
        )
        plot = plot_heads(shares, "attention on the latest frames", shares[1:] >= static_share)
        return io.NodeOutput(
            head_map,
            head_map.to_json(),
            plot,
            ui={
                "text": [f"{head_map}; written to {path}"],
                "head_map": [named(path)],
                "images": save_preview(plot, cls),
                "head_shares": [shares.tolist()],
            },
        )


class LoadHeadTable(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakeLoadHeadTable",
            display_name="Load Head Table",
            category=CATEGORY,
            description="Reads how much each attention head of a model matters, for the budgets "
            "of Directed Forcing.",
            search_aliases=["head importance", "head budgets", "Focused Forcing head scores"],
            inputs=[
                io.Combo.Input(
                    "head_table",
                    options=names_in(TABLES),
                    tooltip="A JSON file in models/kv_head_tables, or one that Calibrate Heads "
                    "wrote.",
                )
            ],
            outputs=[HeadTableSocket.Output(display_name="head_table")],
        )

    @classmethod
    def fingerprint_inputs(cls, head_table):
        return file_version(TABLES, head_table)

    @classmethod
    def execute(cls, head_table):
        return io.NodeOutput(load_head_table(head_table))


class CalibrateHeads(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakeCalibrateHeads",
            display_name="Calibrate Heads",
            category=CATEGORY,
            is_output_node=True,
            description="Measures how much each attention head matters: samples the take once as "
            "it is and once without each head. "
            "One take per head, so hours on a large model; it goes on where it was stopped.",
            search_aliases=[
                "head importance",
                "head table",
                "Focused Forcing calibration",
                "distribution matching loss",
            ],
            inputs=[
                io.Model.Input("model"),
                io.Conditioning.Input("positive"),
                io.Latent.Input(
                    "latent",
                    tooltip="A video latent: the length and number of the takes that are compared.",
                ),
                seed_input(),
                file_name_input("head_table", TABLES),
                io.Float.Input(
                    "real_cfg",
                    default=3.0,
                    min=1.0,
                    max=100.0,
                    step=0.1,
                    tooltip="Guidance of the real score model, when one and a negative prompt are "
                    "connected.",
                ),
                policy_to_use(),
                prefix_input(),
                control_input(),
                io.Model.Input(
                    "real_score",
                    optional=True,
                    tooltip="The teacher (a bidirectional Wan): with fake_score, the paper's "
                    "measure. Without both: a proxy, the drift of the latents.",
                ),
                io.Model.Input(
                    "fake_score",
                    optional=True,
                    tooltip="The critic that was trained on the model's own output.",
                ),
                io.Conditioning.Input(
                    "negative", optional=True, tooltip="For the real score model."
                ),
            ],
            outputs=[
                HeadTableSocket.Output(display_name="head_table"),
                io.String.Output(display_name="json"),
                io.Image.Output(display_name="plot"),
            ],
        )

    @classmethod
    def validate_inputs(cls, name=None):
        return accepts(cls, plain_name, name=name)

    @classmethod
    def execute(
        cls,
        model,
        positive,
        latent,
        seed,
        name,
        real_cfg,
        kv_policy=None,
        prefix=None,
        control=None,
        real_score=None,
        fake_score=None,
        negative=None,
    ):
        table, path = calibrate_heads(
            model,
            positive,
            latent,
            seed=seed,
            name=name,
            policy=kv_policy,
            prefix=prefix,
            control=control,
            real=real_score,
            fake=fake_score,
            negative=negative,
            real_cfg=real_cfg,
        )
        plot = plot_heads(torch.tensor(table.scores), f"damage without the head ({table.measure})")
        return io.NodeOutput(
            table,
            table.to_json(),
            plot,
            ui={
                "text": [f"{table}; written to {path}"],
                "head_table": [named(path)],
                "images": save_preview(plot, cls),
                "head_scores": [table.scores],
            },
        )
