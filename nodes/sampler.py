"""The AR video sampler, as a node that samples and as a SAMPLER for the host's own."""

from dataclasses import replace

from comfy_api.latest import io, ui

from ..host.files.results import graph_of, named
from ..host.model.tensors import samples_of
from ..host.show.result_files import stats_result
from ..host.take.memory_wire import NOT_KEPT, kept, require_kept
from ..host.take.request import TakeRequest
from ..host.take.sampling import ARVideoSampler
from ..host.take.take import sample_take
from .inputs import (
    cfg_input,
    chunk_frames_input,
    control_input,
    drop_given_input,
    memory_input,
    policy_to_use,
    prefix_input,
    seed_input,
    steps_input,
    stop_after_input,
)
from .sockets import CATEGORY, KVMemorySocket, KVStatsSocket, StreamSocket


class ARVideoSamplerNode(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakeARVideoSampler",
            display_name="AR Video Sampler",
            category=CATEGORY,
            has_intermediate_output=True,
            description="Makes a take chunk by chunk; each chunk attends to what the KV policy "
            "kept of the ones before.",
            search_aliases=[
                "autoregressive sampler",
                "Self-Forcing sampler",
                "long video",
                "KV cache",
                "chunk sampler",
            ],
            inputs=[
                io.Model.Input("model"),
                io.Conditioning.Input("positive"),
                io.Latent.Input(
                    "latent",
                    tooltip="A video latent; its length is the take's. Empty for a take from "
                    "noise.",
                ),
                seed_input(),
                steps_input(),
                cfg_input(
                    "Guidance. AR models are distilled for 1; above 1 the negative prompt runs "
                    "with a cache of its own."
                ),
                chunk_frames_input(),
                io.Conditioning.Input("negative", optional=True),
                policy_to_use(),
                prefix_input(),
                control_input(),
                io.Sigmas.Input(
                    "sigmas",
                    optional=True,
                    tooltip="Noise levels of a chunk's steps; open: from steps and the model's "
                    "shift.",
                ),
                drop_given_input(),
                stop_after_input(),
                io.Boolean.Input(
                    "keep_memory",
                    default=False,
                    optional=True,
                    tooltip="Copy what the take needs to go on, for Save KV Memory or another "
                    "sampler. It lies in main memory.",
                ),
                memory_input(),
                StreamSocket.Input(
                    "stream",
                    optional=True,
                    tooltip="Write the take into a video file while it is made (AR Video Stream "
                    "To File).",
                ),
            ],
            outputs=[
                io.Latent.Output(display_name="latent"),
                KVStatsSocket.Output(display_name="kv_stats"),
                KVMemorySocket.Output(display_name="kv_memory"),
            ],
            hidden=[io.Hidden.dynprompt, io.Hidden.prompt, io.Hidden.extra_pnginfo],
        )

    @classmethod
    def execute(
        cls,
        model,
        positive,
        latent,
        seed,
        steps,
        cfg,
        chunk_frames,
        negative=None,
        kv_policy=None,
        prefix=None,
        control=None,
        sigmas=None,
        drop_given=False,
        stop_after=0,
        keep_memory=False,
        kv_memory=None,
        stream=None,
    ):
        require_kept(keep_memory, cls.hidden)
        memories, opened = [], []
        if stream is not None:
            stream = replace(stream, metadata=graph_of(cls.hidden))
        taken, stats = sample_take(
            model,
            positive,
            negative,
            cfg,
            latent,
            seed=seed,
            steps=steps,
            chunk_frames=chunk_frames,
            policy=kv_policy,
            prefix=prefix,
            control=control,
            sigmas=sigmas,
            drop_given=drop_given,
            memory=kept(kv_memory),
            stop_after=stop_after,
            on_memory=memories.append if keep_memory else None,
            stream=stream,
            on_files=opened.append,
        )
        text = [*stats.notes, *(memory.report() for memory in memories)]
        videos = {}
        if opened:
            videos = ui.PreviewVideo([named(files.video) for files in opened]).as_dict()
        return io.NodeOutput(
            taken,
            stats,
            memories[0] if memories else NOT_KEPT,
            ui={"text": text, **stats_result(stats), **videos},
        )


class ARVideoSamplerSelect(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakeARVideoSamplerSelect",
            display_name="AR Video Sampler Select",
            category=CATEGORY,
            description="The AR Video Sampler as a SAMPLER, for SamplerCustomAdvanced with its "
            "noise, sigmas and guiders of one model. "
            "The model must come from AR Video Model Loader, AR Profile or Demo World.",
            search_aliases=["SAMPLER", "SamplerCustomAdvanced", "KSamplerSelect", "SamplerARVideo"],
            inputs=[
                chunk_frames_input(),
                policy_to_use(),
                prefix_input(),
                control_input(),
                drop_given_input(),
                stop_after_input(),
                memory_input(),
            ],
            outputs=[io.Sampler.Output(display_name="sampler")],
        )

    @classmethod
    def execute(
        cls,
        chunk_frames,
        kv_policy=None,
        prefix=None,
        control=None,
        drop_given=False,
        stop_after=0,
        kv_memory=None,
    ):
        request = TakeRequest(
            policy=kv_policy,
            chunk_frames=chunk_frames,
            prefix=None if prefix is None else samples_of(prefix, "prefix"),
            control=control,
            drop_given=drop_given,
            memory=kept(kv_memory),
            stop_after=stop_after,
        )
        return io.NodeOutput(ARVideoSampler(request))
