"""Head maps: which heads look at the latest frames only."""
from comfy_api.latest import io

from ..host.head_maps import head_map_names, load_head_map, profile_heads, save_head_map
from ..host.plots import plot_heads, save_preview
from .sampler import control_input, prefix_input
from .sockets import CATEGORY, HeadMapSocket


class LoadHeadMap(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakeLoadHeadMap", display_name="Load Head Map", category=CATEGORY,
            description="Reads which attention heads are static (they look at the latest frames only) and which are dynamic.",
            search_aliases=["Forcing-KV head map", "static heads", "dynamic heads", "head-specialised"],
            inputs=[io.Combo.Input("head_map", options=head_map_names(),
                                   tooltip="A JSON file in models/kv_head_maps, or one that Profile Heads wrote.")],
            outputs=[HeadMapSocket.Output(display_name="head_map")])

    @classmethod
    def execute(cls, head_map):
        return io.NodeOutput(load_head_map(head_map))


class ProfileHeads(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakeProfileHeads", display_name="Profile Heads", category=CATEGORY, is_output_node=True,
            description="Makes a head map of a model: samples takes with everything kept and measures, at the last chunk's first step, "
                        "what share of its attention each head gives to the latest four frames.",
            search_aliases=["head map", "static heads", "Forcing-KV profiling", "calibrate heads"],
            inputs=[
                io.Model.Input("model"),
                io.Conditioning.Input("positive"),
                io.Latent.Input("latent", tooltip="A video latent; each of its batch is one calibration take (the paper used 15 videos)."),
                io.Int.Input("seed", default=0, min=0, max=0xffffffffffffffff, control_after_generate=True),
                io.Float.Input("static_share", default=0.8, min=0.0, max=1.0, step=0.01,
                               tooltip="Heads that give at least this share to the latest four context frames are static. 0.8 in the paper."),
                io.String.Input("name", default="head_map", tooltip="File name in output/kv_head_maps; a number is added."),
                prefix_input(),
                control_input(),
            ],
            outputs=[HeadMapSocket.Output(display_name="head_map"), io.String.Output(display_name="json"), io.Image.Output(display_name="plot")])

    @classmethod
    def execute(cls, model, positive, latent, seed, static_share, name, prefix=None, control=None):
        head_map, shares = profile_heads(model, positive, latent, seed=seed, static_share=static_share, prefix=prefix, control=control)
        path, plot = save_head_map(head_map, name), plot_heads(shares, static_share)
        return io.NodeOutput(head_map, head_map.to_json(), plot, ui={"text": [f"{head_map}; written to {path}"], "images": save_preview(plot, cls),
                                                                     "head_shares": [shares.tolist()]})
