"""What a take's KV cache held and what it cost, as text, pictures and JSON."""

from comfy_api.latest import io

from ..host.show.memory_pictures import film_of_memory, light_kept_tokens, memory_map_preview
from ..host.show.plots import plot_stats, save_preview
from ..host.show.result_files import save_values, stats_result, summary
from .sockets import CATEGORY, KVStatsSocket

SHOWN = {"at the end": light_kept_tokens, "chunk by chunk": film_of_memory}


class KVMemoryStats(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakeKVMemoryStats",
            display_name="KV Memory Stats",
            category=CATEGORY,
            is_output_node=True,
            description="Shows what the KV cache of a take held and cost: bytes and tokens by "
            "chunk, prune ratio, time by phase.",
            search_aliases=["memory report", "cache size", "prune ratio", "VRAM", "KV cache plot"],
            inputs=[KVStatsSocket.Input("kv_stats")],
            outputs=[io.String.Output(display_name="json"), io.Image.Output(display_name="plot")],
        )

    @classmethod
    def execute(cls, kv_stats):
        plot = plot_stats(kv_stats)
        return io.NodeOutput(
            kv_stats.to_json(),
            plot,
            ui={
                "text": [kv_stats.report()],
                "images": save_preview(plot, cls),
                **stats_result(kv_stats),
            },
        )


class KVMemoryMap(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakeKVMemoryMap",
            display_name="KV Memory Map",
            category=CATEGORY,
            has_intermediate_output=True,
            description="The take's frames with the tokens lit that its last chunk could still "
            "read; what was dropped is dim and grey. Or, chunk by "
            "chunk, what was in memory then.",
            search_aliases=[
                "memory map",
                "kept tokens",
                "attention mask video",
                "what the model remembers",
            ],
            inputs=[
                io.Image.Input("images", tooltip="The take's decoded frames, all of them."),
                KVStatsSocket.Input("kv_stats"),
                io.Float.Input(
                    "dropped_brightness",
                    default=0.25,
                    min=0.0,
                    max=1.0,
                    step=0.05,
                    tooltip="How bright dropped tokens are shown.",
                ),
                io.Combo.Input(
                    "show",
                    options=[*SHOWN],
                    default="at the end",
                    optional=True,
                    tooltip="At the end: the take's frames, lit where its last chunk could read. "
                    "Chunk by chunk: an image for each "
                    "chunk, with small pictures of the frames so far, a row for each head group, "
                    "and, under Directed Forcing, "
                    "a row of what was read.",
                ),
            ],
            outputs=[io.Image.Output(display_name="images")],
        )

    @classmethod
    def execute(cls, images, kv_stats, dropped_brightness, show="at the end"):
        shown = SHOWN[show](images, kv_stats, dropped_brightness)
        shown_by_page = memory_map_preview(images, kv_stats, dropped_brightness, cls)
        return io.NodeOutput(
            shown,
            ui={
                "memory_map": [summary(shown_by_page)],
                "memory_map_file": save_values(shown_by_page),
            },
        )
