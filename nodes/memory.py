"""Save a take's KV memory to a file, and load it to go on with the take."""

from comfy_api.latest import io

from ..host.files import memory_files
from ..host.files.names import plain_prefix
from ..host.files.results import named
from ..host.take.memory_wire import kept
from .constants import accepts
from .sockets import CATEGORY, KVMemorySocket


class SaveKVMemory(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakeSaveKVMemory",
            display_name="Save KV Memory",
            category=CATEGORY,
            is_output_node=True,
            description="Writes what a take needs to go on (its KV cache, its latents, the latent "
            "frame that it has reached) into one file in output/kv_memory.",
            search_aliases=["save KV cache", "continue later", "checkpoint a take", "resume"],
            inputs=[
                KVMemorySocket.Input(
                    "kv_memory", tooltip="From an AR Video Sampler with keep_memory on."
                ),
                io.String.Input(
                    "filename_prefix",
                    default="take",
                    tooltip="File name in output/kv_memory; a number is added.",
                ),
            ],
            outputs=[io.String.Output(display_name="name", tooltip="As Load KV Memory lists it.")],
        )

    @classmethod
    def validate_inputs(cls, filename_prefix=None):
        return accepts(cls, plain_prefix, filename_prefix=filename_prefix)

    @classmethod
    def execute(cls, kv_memory, filename_prefix):
        name, report = memory_files.save(kept(kv_memory), filename_prefix)
        file = named(memory_files.saved_path(name))
        return io.NodeOutput(name, ui={"text": [report], "kv_memory": [file]})


class LoadKVMemory(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakeLoadKVMemory",
            display_name="Load KV Memory",
            category=CATEGORY,
            has_intermediate_output=True,
            description="Reads a file that Save KV Memory wrote; the AR Video Sampler carries on "
            "from it.",
            search_aliases=["load KV cache", "continue a take", "resume"],
            inputs=[
                io.Combo.Input(
                    "memory_file",
                    options=memory_files.saved_memories(),
                    tooltip="A file in output/kv_memory.",
                ),
                io.String.Input(
                    "name",
                    optional=True,
                    force_input=True,
                    tooltip="From Save KV Memory: the file that it wrote, in place of memory_file.",
                ),
            ],
            outputs=[KVMemorySocket.Output(display_name="kv_memory")],
        )

    @classmethod
    def validate_inputs(cls, input_types, memory_file=None, name=None):
        """With `name` connected, memory_file need not be there: the list is empty at first."""
        if input_types.get("name", "STRING") != "STRING":
            return f"name is a {input_types['name']}. Connect the name that Save KV Memory gives."
        is_needed = "name" not in input_types and name is None and memory_file is not None
        if is_needed and memory_file not in memory_files.saved_memories():
            return f"{memory_file!r} is not in output/kv_memory. Choose a file that is listed."
        return True

    @classmethod
    def fingerprint_inputs(cls, memory_file, name=None):
        return memory_files.version(name or memory_file)

    @classmethod
    def execute(cls, memory_file, name=None):
        memory = memory_files.load(memory_file if name is None else name)
        return io.NodeOutput(memory, ui={"text": [memory.report()]})
