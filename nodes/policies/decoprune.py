"""The node of DeCoPrune and, with a head map, DeCoPrune-HS."""

from comfy_api.latest import io

from ...kv_policies import DeCoPrune, DeCoPruneHS
from ...kv_policies.retention.decoprune import MODES
from ...kv_policies.retention.scores import SCORES
from ..constants import accepts
from ..inputs import bound_inputs, reindex_inputs, target_keep_input, whole_chunks_inputs
from ..sockets import CATEGORY, HeadMapSocket, KVPolicySocket, fill, policy_input

# Of new graphs, which then need no gamma. A saved graph holds its mode, and a graph of the API that
# has none is refused by the host: the input is required. Code that makes a DeCoPrune without a mode
# gets the paper's.
DEFAULT_MODE = "valley"


class PolicyDeCoPrune(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicyDeCoPrune",
            display_name="KV Policy: DeCoPrune",
            category=CATEGORY,
            description="Keeps the tokens that could not have been predicted: about a seventh of "
            "the past in the paper (gamma 0.10, LingBot-World v2), about a tenth in the demo world "
            "(mode valley). With a head map, in the heads that look far.",
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
                    default=DEFAULT_MODE,
                    tooltip="threshold: keep what scores above gamma (the paper's rule). "
                    "target_keep: keep the best share of each chunk (ours). valley: keep what "
                    "scores above the valley between the scores' two humps, found from the take "
                    "itself (ours).",
                ),
                io.Float.Input(
                    "gamma",
                    default=DeCoPrune.gamma,
                    min=0.0,
                    max=100.0,
                    step=0.001,
                    round=0.0001,
                    tooltip="Score above which a token stays, in mode threshold. The report of KV "
                    "Memory Stats shows where the scores lie.",
                ),
                target_keep_input(
                    "Share of each chunk that stays, in mode target_keep. In mode valley the share "
                    "where the scores have one hump; 1/30 to 4 times this share otherwise."
                ),
                io.Int.Input(
                    "probe_step",
                    default=DeCoPrune.probe_step,
                    min=-1,
                    max=99,
                    tooltip="Step (from 0) whose prediction is compared with the finished chunk. "
                    "-1: step 2 of 4 where its sigma is 0.80 to 0.95, else the one with sigma "
                    "nearest 0.90; the report names it.",
                ),
                io.Combo.Input(
                    "score",
                    options=list(SCORES),
                    default=DeCoPrune.score,
                    tooltip="How prediction and result are compared, per token. mse is the "
                    "paper's.",
                ),
                *whole_chunks_inputs(),
                io.Int.Input(
                    "min_keep_per_block",
                    default=DeCoPrune.min_keep_per_block,
                    min=0,
                    max=16,
                    tooltip="Tokens that stay of every 4x4 in a frame, at least. 0 is the paper's.",
                ),
                io.Float.Input(
                    "floor_threshold",
                    default=DeCoPrune.floor_threshold,
                    min=0.0,
                    max=100.0,
                    step=0.001,
                    round=0.0001,
                    tooltip="min_keep_per_block leaves a block alone when none of its tokens "
                    "scores above this.",
                ),
                *reindex_inputs(),
                policy_input(),
                HeadMapSocket.Input(
                    "head_map",
                    optional=True,
                    tooltip="Static heads then hold only the first 4 and the latest 4 latent "
                    "frames (DeCoPrune-HS).",
                ),
                *bound_inputs(),
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
