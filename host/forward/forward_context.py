"""What the patches of a model need to know of one model call."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ...kv_policies import Forward
from ...rollout.session import Session
from .attention import outside_malloc_graph


@dataclass(frozen=True)
class ForwardContext:
    """What the attention patch needs to know of one model call."""

    session: Session
    forward: Forward
    prompts: list  # of each batch row: its stream, and the prompt in force
    rotation: Tensor
    text_is_constant: bool
    is_extra: list[bool]  # of each batch row: as in `Session.attend`
    made: dict[str, Tensor]  # what was made once for this span, by name

    @property
    def streams(self) -> list:
        """The stream of each batch row."""
        return [stream for stream, _ in self.prompts]

    def once_a_span(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """What depends on the latent frames in work and on nothing else: made in the first of the
        forwards that work on them one after another, and kept for the others.
        """
        if name not in self.made:
            with outside_malloc_graph():
                self.made[name] = make()
        return self.made[name]

    def act(self, layer: int, part: str, k: Tensor, v: Tensor) -> list[tuple[Tensor, Tensor]]:
        """What a part of an action module reads, for each batch row, see `Session.act`."""
        return self.session.act(self.forward, self.streams, layer, part, k, v, self.is_extra)

    def require_all_rows(self, x: Tensor, layer: int):
        """ValueError, in a sentence, where `x` has not a row for each prompt."""
        if len(x) != len(self.prompts):
            raise ValueError(
                f"Another node runs layer {layer} of the model for {len(x)} of the "
                f"{len(self.prompts)} prompts of a forward, and a take cannot tell which caches "
                "they belong to. Remove that node, or turn off what it leaves out."
            )
