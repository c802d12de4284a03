"""One node per policy. Each fills one slot of the policy that comes in and hands it on."""

from dataclasses import replace

from comfy_api.latest import io

from ..kv_policies import DeCoPrune, DeCoPruneHS, DirectedForcing, FullKV, SinkWindow
from ..kv_policies.retention.decoprune import MODES, REINDEX
from ..kv_policies.retention.pruning_controls import CONTROLS, control_of
from ..kv_policies.retention.scores import SCORES
from ..kv_policies.retention.sink_window import SINK_ROPE
from .constants import accepts
from .sockets import (
    CATEGORY,
    DIRECTED,
    HeadMapSocket,
    HeadTableSocket,
    KVPolicySocket,
    fill,
    policy_input,
)


class PolicyFull(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicyFull",
            display_name="KV Policy: Full",
            category=CATEGORY,
            description="Keeps every token of the past. The reference for all other policies; "
            "memory grows with the take's length.",
            search_aliases=["FullKV", "full cache", "no eviction", "keep everything"],
            inputs=[policy_input()],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def execute(cls, kv_policy=None):
        return fill(kv_policy, retention=FullKV())


class PolicySinkWindow(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicySinkWindow",
            display_name="KV Policy: Sink + Window",
            category=CATEGORY,
            description="Keeps the first frames and the latest frames; what lies between is "
            "forgotten. Memory stays constant.",
            search_aliases=[
                "sliding window",
                "attention sink",
                "StreamingLLM",
                "LongLive",
                "frame sink",
                "rolling KV cache",
            ],
            inputs=[
                io.Int.Input(
                    "window_frames",
                    default=21,
                    min=1,
                    max=4096,
                    tooltip="Latent frames in the cache at most: sink, window and the chunk in "
                    "work together. "
                    "Self-Forcing was trained with 21, LongLive with 12.",
                ),
                io.Int.Input(
                    "sink_frames",
                    default=3,
                    min=0,
                    max=1024,
                    tooltip="First latent frames that are never forgotten. 0 is a plain sliding "
                    "window.",
                ),
                io.Combo.Input(
                    "sink_rope",
                    options=list(SINK_ROPE),
                    default="absolute",
                    tooltip="absolute: the sink keeps its true place in time. shifted: it is "
                    "turned to stand just before the "
                    "window, so that no distance grows beyond it.",
                ),
                policy_input(),
            ],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def validate_inputs(cls, window_frames=None, sink_frames=None):
        return accepts(cls, SinkWindow, window_frames=window_frames, sink_frames=sink_frames)

    @classmethod
    def execute(cls, window_frames, sink_frames, sink_rope, kv_policy=None):
        return fill(kv_policy, retention=SinkWindow(sink_frames, window_frames, sink_rope))


class PolicyDeCoPrune(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicyDeCoPrune",
            display_name="KV Policy: DeCoPrune",
            category=CATEGORY,
            description="Keeps the tokens that could not have been predicted: about a seventh of "
            "the past in the paper (gamma 0.10, LingBot-World v2), about a tenth in the demo world "
            "(gamma 0.02). With a head map, in the heads that look far.",
            search_aliases=[
                "denoising-consistency pruning",
                "token pruning",
                "KV cache compression",
                "DeCoPrune-HS",
                "RoPE re-index",
            ],
            inputs=[
                io.Combo.Input(
                    "mode",
                    options=list(MODES),
                    default="threshold",
                    tooltip="threshold: keep what scores above gamma (the paper's rule). "
                    "target_keep: keep the best share of each chunk (ours).",
                ),
                io.Float.Input(
                    "gamma",
                    default=0.10,
                    min=0.0,
                    max=100.0,
                    step=0.001,
                    round=0.0001,
                    tooltip="Score above which a token stays. The report of KV Memory Stats shows "
                    "where the scores lie.",
                ),
                io.Float.Input(
                    "target_keep",
                    default=0.15,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                    tooltip="Share of each chunk that stays, in mode target_keep.",
                ),
                io.Int.Input(
                    "probe_step",
                    default=-1,
                    min=-1,
                    max=99,
                    tooltip="Step (from 0) whose prediction is compared with the finished chunk. "
                    "-1: step 2 of 4, else the one with sigma nearest 0.90.",
                ),
                io.Combo.Input(
                    "score",
                    options=list(SCORES),
                    default="mse",
                    tooltip="How prediction and result are compared, per token. mse is the "
                    "paper's.",
                ),
                io.Int.Input(
                    "dense_chunks",
                    default=2,
                    min=1,
                    max=1024,
                    tooltip="Latest chunks that stay whole; frame-wise models count 3 frames as "
                    "one.",
                ),
                io.Int.Input(
                    "sink_chunks",
                    default=1,
                    min=0,
                    max=1024,
                    tooltip="First chunks that stay whole; frame-wise models count 3 frames as "
                    "one.",
                ),
                io.Int.Input(
                    "min_keep_per_block",
                    default=0,
                    min=0,
                    max=16,
                    tooltip="Tokens that stay of every 4x4 in a frame, at least. 0 is the paper's.",
                ),
                io.Float.Input(
                    "floor_threshold",
                    default=0.0,
                    min=0.0,
                    max=100.0,
                    step=0.001,
                    round=0.0001,
                    tooltip="min_keep_per_block leaves a block alone when none of its tokens "
                    "scores above this.",
                ),
                io.Combo.Input(
                    "reindex",
                    options=list(REINDEX),
                    default="auto",
                    tooltip="auto: squeeze the places in time of given frames once, where new "
                    "ones begin. "
                    "periodic (ours): do so again as the take grows.",
                ),
                io.Int.Input(
                    "virtual_length",
                    default=17,
                    min=1,
                    max=4096,
                    tooltip="Latent frames into which the re-index squeezes the past.",
                ),
                io.Int.Input(
                    "reindex_recent",
                    default=8,
                    min=0,
                    max=4096,
                    tooltip="Latest of these, which keep their places.",
                ),
                policy_input(),
                HeadMapSocket.Input(
                    "head_map",
                    optional=True,
                    tooltip="Static heads then hold only the first 4 and the latest 4 latent "
                    "frames (DeCoPrune-HS).",
                ),
                io.Int.Input(
                    "most_frames",
                    default=0,
                    min=0,
                    max=1048576,
                    optional=True,
                    tooltip="Bound for endless takes (ours): so many latent frames' worth of "
                    "tokens stay before the dense chunks, "
                    "and what scored lowest leaves first. 0: no bound.",
                ),
            ],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def validate_inputs(cls, virtual_length=None, reindex_recent=None):
        return accepts(cls, DeCoPrune, virtual_length=virtual_length, reindex_recent=reindex_recent)

    @classmethod
    def execute(cls, kv_policy=None, head_map=None, **parameters):
        return fill(
            kv_policy,
            retention=DeCoPruneHS(**parameters, head_map=head_map)
            if head_map
            else DeCoPrune(**parameters),
        )


class PruningControl(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePruningControl",
            display_name="KV Policy: Pruning Control",
            category=CATEGORY,
            description="For comparisons: as many tokens of each chunk as DeCoPrune would keep, "
            "but others.",
            search_aliases=[
                "random pruning",
                "reverse pruning",
                "TempDiff",
                "ablation",
                "baseline",
            ],
            inputs=[
                KVPolicySocket.Input(
                    "kv_policy",
                    tooltip="From KV Policy: DeCoPrune, without a head map. Its numbers hold here "
                    "too.",
                ),
                io.Combo.Input(
                    "ranking",
                    options=list(CONTROLS),
                    default="random",
                    tooltip="random; reverse: the easiest to predict; "
                    "temporal difference: those that changed most since the frame before, chunk by "
                    "chunk (the paper's TempDiff ranks the whole history once).",
                ),
            ],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def execute(cls, kv_policy, ranking):
        return io.NodeOutput(replace(kv_policy, retention=control_of(kv_policy.retention, ranking)))


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
                    default=0.46,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                    tooltip="Weight of attention in a frame's score; the rest is how much it "
                    "differs from the other frames.",
                ),
                io.Float.Input(
                    "gamma",
                    default=2.0,
                    min=0.0,
                    max=16.0,
                    step=0.1,
                    tooltip="Above 1 only the most important heads of the table get more than "
                    "budget_min.",
                ),
                io.Int.Input(
                    "budget_min",
                    default=4,
                    min=1,
                    max=4096,
                    tooltip="Latent frames that the least important head reads, its chunk's own "
                    "included.",
                ),
                io.Int.Input(
                    "budget_max",
                    default=12,
                    min=1,
                    max=4096,
                    tooltip="Latent frames that the most important head reads.",
                ),
                io.Int.Input(
                    "uniform_budget",
                    default=7,
                    min=1,
                    max=4096,
                    tooltip="Latent frames that every head reads when no head table is connected.",
                ),
                io.Int.Input(
                    "active_from",
                    default=0,
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
