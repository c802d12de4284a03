"""The node of TaylorSeer."""

from comfy_api.latest import io

from ...kv_policies import TaylorSeer
from ..sockets import CATEGORY, KVPolicySocket, fill, policy_input


class PolicyTaylorSeer(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicyTaylorSeer",
            display_name="KV Policy: TaylorSeer",
            category=CATEGORY,
            description="Forecasts the later steps of a chunk from the earlier ones instead of "
            "computing them: faster, less exact. For 4 steps or more; the memory is always "
            "computed.",
            search_aliases=[
                "feature caching",
                "feature forecasting",
                "Taylor expansion",
                "skip steps",
                "acceleration",
            ],
            inputs=[
                io.Int.Input(
                    "order",
                    default=TaylorSeer.order,
                    min=0,
                    max=4,
                    tooltip="How many differences are followed: 1 is a straight line; 0 gives the "
                    "last computed step's again.",
                ),
                io.Int.Input(
                    "interval",
                    default=TaylorSeer.interval,
                    min=2,
                    max=100,
                    tooltip="Of the steps after the first ones, one in so many is computed.",
                ),
                io.Int.Input(
                    "first_steps",
                    default=TaylorSeer.first_steps,
                    min=1,
                    max=99,
                    tooltip="Steps of each chunk that are computed before any is forecast. 3 of 4 "
                    "leave one to forecast.",
                ),
                policy_input(),
            ],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def execute(cls, kv_policy=None, **parameters):
        return fill(kv_policy, schedule=TaylorSeer(**parameters))
