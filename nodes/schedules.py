"""The policy nodes that fill the schedule: in which order forwards run, and with that how history
gets into the cache.
"""

from comfy_api.latest import io

from ..host.take.patch import patch
from ..kv_policies import ContextRecompute, FlashForward, Hierarchical, RollingForcing
from .sockets import CATEGORY, KVPolicySocket, fill, policy_input


class PolicyFlashForward(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicyFlashForward",
            display_name="KV Policy: FlashForward Anchors",
            category=CATEGORY,
            description="Makes sparse clean anchors ahead and renders every frame between them; "
            "history is what each step left at the same step. "
            "Each block of anchors has one clean pass, the chunks have none.",
            search_aliases=[
                "FlashForward",
                "in-flight KV cache",
                "clean anchors",
                "planner renderer",
                "skip clean pass",
            ],
            inputs=[
                io.Int.Input(
                    "anchor_stride",
                    default=10,
                    min=1,
                    max=4096,
                    tooltip="Latent frames from one anchor to the next.",
                ),
                io.Int.Input(
                    "block_anchors",
                    default=3,
                    min=1,
                    max=64,
                    tooltip="Anchors that are made together.",
                ),
                io.Int.Input(
                    "anchor_window",
                    default=3,
                    min=0,
                    max=64,
                    tooltip="Anchors that a chunk reads: the nearest ones, before and after it. "
                    "0: none are made.",
                ),
                io.Int.Input(
                    "planner_history",
                    default=6,
                    min=1,
                    max=1024,
                    tooltip="Blocks of anchors that a new block remembers.",
                ),
                io.Int.Input(
                    "stage_history",
                    default=5,
                    min=0,
                    max=1024,
                    tooltip="Chunks whose keys and values a chunk reads, each step its own. 0: "
                    "anchors alone.",
                ),
                io.Int.Input(
                    "budget_frames",
                    default=21,
                    min=2,
                    max=4096,
                    tooltip="Latent frames at most of anchors, history and chunk together.",
                ),
                policy_input(),
                io.Model.Input(
                    "planner_model",
                    optional=True,
                    tooltip="The model that makes the anchors, for instance the sampler's with a "
                    "planner LoRA. Open: the sampler's.",
                ),
                io.Model.Input(
                    "renderer_model",
                    optional=True,
                    tooltip="The model that makes the frames. Open: the sampler's.",
                ),
            ],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def execute(cls, kv_policy=None, planner_model=None, renderer_model=None, **parameters):
        connected = {"planner": planner_model, "renderer": renderer_model}
        models = {role: patch(model) for role, model in connected.items() if model}
        return fill(kv_policy, models, schedule=FlashForward(**parameters))


class PolicyHierarchical(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicyHierarchical",
            display_name="KV Policy: Hierarchical (HiAR)",
            category=CATEGORY,
            description="Runs each denoising step over the whole take before the next; history is "
            "at the same noise level. For HiAR's weights.",
            search_aliases=["HiAR", "step-major", "matched noise", "hierarchical denoising"],
            inputs=[
                io.Int.Input(
                    "window_frames",
                    default=21,
                    min=1,
                    max=4096,
                    tooltip="Latent frames that are read at most, the chunk's own included.",
                ),
                policy_input(),
            ],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def execute(cls, window_frames, kv_policy=None):
        return fill(kv_policy, schedule=Hierarchical(window_frames))


class PolicyRollingForcing(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicyRollingForcing",
            display_name="KV Policy: Rolling Forcing",
            category=CATEGORY,
            description="Denoises as many chunks together as there are steps, each less noisy "
            "than the next, beside a sink that moves along. "
            "For Rolling Forcing's weights and Causal-Forcing's long video model.",
            search_aliases=[
                "RollingForcing",
                "joint denoising",
                "rolling window",
                "long video",
                "attention sink",
            ],
            inputs=[
                io.Int.Input(
                    "window_frames",
                    default=21,
                    min=2,
                    max=4096,
                    tooltip="Latent frames that are read at most: the sink, finished frames and "
                    "the chunks in flight together.",
                ),
                policy_input(),
            ],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def execute(cls, window_frames, kv_policy=None):
        return fill(kv_policy, schedule=RollingForcing(window_frames))


class PolicyContextRecompute(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicyContextRecompute",
            display_name="KV Policy: Krea Recompute",
            category=CATEGORY,
            description="Makes the cache anew before each chunk, from the first frame and the "
            "latest ones, at positions that start at 0. "
            "For Krea Realtime's weights.",
            search_aliases=[
                "Krea Realtime",
                "KV recompute",
                "context frames",
                "keep_first_frame",
                "kv_cache_num_frames",
            ],
            inputs=[
                io.Int.Input(
                    "window_frames",
                    default=6,
                    min=2,
                    max=4096,
                    tooltip="Latent frames that are read at most, the chunk's own included. "
                    "6 with chunks of 3: the first frame and the last two.",
                ),
                policy_input(),
            ],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def execute(cls, window_frames, kv_policy=None):
        return fill(kv_policy, schedule=ContextRecompute(window_frames))
