"""What the memory of a take held and cost, as text, picture and JSON."""
from comfy_api.latest import io

from ..host.plots import plot_stats, save_preview
from .sockets import CATEGORY, KVStatsSocket


class KVMemoryStats(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakeKVMemoryStats", display_name="KV Memory Stats", category=CATEGORY, is_output_node=True,
            description="Shows what the KV cache of a take held and cost: bytes and tokens by chunk, prune ratio, time by phase.",
            search_aliases=["memory report", "cache size", "prune ratio", "VRAM", "KV cache plot"],
            inputs=[KVStatsSocket.Input("kv_stats")],
            outputs=[io.String.Output(display_name="json"), io.Image.Output(display_name="plot")])

    @classmethod
    def execute(cls, kv_stats):
        plot = plot_stats(kv_stats)
        return io.NodeOutput(kv_stats.to_json(), plot, ui={"text": [kv_stats.report()], "images": save_preview(plot, cls),
                                                           "kv_stats": [kv_stats.to_dict()]})
