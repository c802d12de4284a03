"""How much memory a take will need, before it is made."""

from comfy_api.latest import io

from ..host.budget.of_inputs import budget_of_inputs
from ..host.budget.report import budget_dict, budget_json, budget_report
from ..host.show.plots import plot_budget, save_preview
from ..host.show.result_files import save_values, summary
from .inputs import cfg_input, chunk_frames_input, policy_to_use, prefix_input, steps_input
from .sockets import CATEGORY, KVStatsSocket


class KVMemoryEstimate(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakeKVMemoryEstimate",
            display_name="KV Memory Estimate",
            category=CATEGORY,
            is_output_node=True,
            description="Computes the memory that a take will need, chunk by chunk, without "
            "running it, and the longest take that fits.",
            search_aliases=[
                "VRAM calculator",
                "out of memory",
                "how long can I go",
                "memory estimate",
                "KV cache size",
            ],
            inputs=[
                io.Model.Input("model"),
                io.Latent.Input("latent", tooltip="The take's latent: its length and size."),
                steps_input(),
                cfg_input(
                    "As the sampler's: other than 1 the negative prompt has a cache of its own."
                ),
                chunk_frames_input(),
                io.Int.Input(
                    "prompts",
                    default=1,
                    min=1,
                    max=16,
                    tooltip="Positive prompts that run at the same time, each with a cache of its "
                    "own.",
                ),
                policy_to_use(),
                prefix_input(),
                KVStatsSocket.Input(
                    "kv_stats",
                    optional=True,
                    tooltip="Stats of an earlier take of the same kind, which may be shorter and "
                    "smaller: where what stays depends on the picture, the estimate then has an "
                    "expected value.",
                ),
            ],
            outputs=[
                io.String.Output(display_name="report"),
                io.String.Output(display_name="json"),
                io.Image.Output(display_name="plot"),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, **inputs):
        return float("nan")  # never equal: the free memory changes outside the graph

    @classmethod
    def execute(
        cls,
        model,
        latent,
        steps,
        cfg,
        chunk_frames,
        prompts,
        kv_policy=None,
        prefix=None,
        kv_stats=None,
    ):
        budget = budget_of_inputs(
            model,
            latent,
            steps=steps,
            cfg=cfg,
            chunk_frames=chunk_frames,
            policy=kv_policy,
            prefix=prefix,
            prompts=prompts,
            earlier=kv_stats,
        )
        plot = plot_budget(budget)
        report, values = budget_report(budget), budget_dict(budget)
        return io.NodeOutput(
            report,
            budget_json(budget),
            plot,
            ui={
                "text": [report],
                "images": save_preview(plot, cls),
                "kv_estimate": [summary(values)],
                "kv_estimate_file": save_values(values),
            },
        )
