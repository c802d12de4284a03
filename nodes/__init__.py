"""The nodes: schema, one call, return. They import the host's API and our rooms below; nothing
imports them.
"""

from comfy_api.latest import ComfyExtension, io

from .demo import DemoCamera, DemoWorld
from .estimate import KVMemoryEstimate
from .heads import CalibrateHeads, LoadHeadMap, LoadHeadTable, ProfileHeads
from .memory import LoadKVMemory, SaveKVMemory
from .model import ARProfileNode, ARVideoModelLoader
from .policies import (
    PolicyDeCoPrune,
    PolicyDirectedForcing,
    PolicyFull,
    PolicySinkWindow,
    PruningControl,
)
from .prompts import PromptAtFrame, PromptTimeline
from .sampler import ARVideoSamplerNode, ARVideoSamplerSelect
from .schedules import (
    PolicyContextRecompute,
    PolicyFlashForward,
    PolicyHierarchical,
    PolicyRollingForcing,
)
from .stats import KVMemoryMap, KVMemoryStats
from .storage import KVStorageNode
from .stream import StreamToFileNode


class KeepsakeExtension(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [
            ARVideoModelLoader,
            ARProfileNode,
            PolicyFull,
            PolicySinkWindow,
            PolicyDeCoPrune,
            PruningControl,
            PolicyDirectedForcing,
            PolicyFlashForward,
            PolicyHierarchical,
            PolicyRollingForcing,
            PolicyContextRecompute,
            LoadHeadMap,
            ProfileHeads,
            LoadHeadTable,
            CalibrateHeads,
            ARVideoSamplerNode,
            ARVideoSamplerSelect,
            KVMemoryStats,
            KVMemoryMap,
            KVMemoryEstimate,
            KVStorageNode,
            DemoWorld,
            DemoCamera,
            PromptTimeline,
            PromptAtFrame,
            SaveKVMemory,
            LoadKVMemory,
            StreamToFileNode,
        ]
