"""The node of DirectedForcing."""

from comfy_api.latest import io

from ...kv_policies import DirectedForcing
from ..constants import accepts
from ..sockets import CATEGORY, DIRECTED, HeadTableSocket, KVPolicySocket, fill


class PolicyDirectedForcing(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicyDirectedForcing",
            display_name="KV Policy: Directed Forcing",
            category=CATEGORY,
            description="Each frame and each head reads only the frames of the memory that suit "
            "it: less attention, the same memory.",
            search_aliases=[
                "Focused Forcing",
                "frame selection",
                "head budgets",
                "sparse attention",
                "Gerichte Afdwinging",
            ],
            inputs=[
                io.Float.Input(
                    "lambda",
                    default=DirectedForcing.attention_weight,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                    tooltip="Weight of attention in a frame's score; the rest is how much it "
                    "differs from the other frames.",
                ),
                io.Float.Input(
                    "gamma",
                    default=DirectedForcing.gamma,
                    min=0.0,
                    max=16.0,
                    step=0.1,
                    tooltip="Above 1 only the most important heads of the table get more than "
                    "budget_min.",
                ),
                io.Int.Input(
                    "budget_min",
                    default=DirectedForcing.budget_min,
                    min=1,
                    max=4096,
                    tooltip="Latent frames that the least important head reads, its chunk's own "
                    "included.",
                ),
                io.Int.Input(
                    "budget_max",
                    default=DirectedForcing.budget_max,
                    min=1,
                    max=4096,
                    tooltip="Latent frames that the most important head reads.",
                ),
                io.Int.Input(
                    "uniform_budget",
                    default=DirectedForcing.uniform_budget,
                    min=1,
                    max=4096,
                    tooltip="Latent frames that every head reads when no head table is connected.",
                ),
                io.Int.Input(
                    "active_from",
                    default=DirectedForcing.active_from,
                    min=0,
                    max=65536,
                    tooltip="Latent frames in reach from which on frames are selected; before, "
                    "all are read. "
                    "0: once the window is full (21 without a window).",
                ),
                KVPolicySocket.Input(
                    "kv_policy",
                    optional=True,
                    tooltip="What stays in memory. Open: a window of 21 frames, 3 of them a sink "
                    "that moves along, "
                    "as in the paper.",
                ),
                HeadTableSocket.Input(
                    "head_table", optional=True, tooltip="From Calibrate Heads or Load Head Table."
                ),
            ],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def validate_inputs(cls, budget_min=None, budget_max=None):
        return accepts(cls, DirectedForcing, budget_min=budget_min, budget_max=budget_max)

    @classmethod
    def execute(
        cls,
        gamma,
        budget_min,
        budget_max,
        uniform_budget,
        active_from,
        kv_policy=None,
        head_table=None,
        **parameters,
    ):
        selection = DirectedForcing(
            parameters["lambda"],
            gamma,
            budget_min,
            budget_max,
            uniform_budget,
            active_from,
            head_table,
        )
        return fill(kv_policy or DIRECTED, selection=selection)
