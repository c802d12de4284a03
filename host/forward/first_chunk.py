"""Models of one or two steps that make their first chunk in more (Causal-Forcing++, arXiv
2605.15141).
"""

from torch import Tensor

from ...kv_policies import Chunk
from ...rollout.rollout import Model


def refine_first_chunk(model: Model, chunks: list[Chunk], sigmas: Tensor, longer: Tensor) -> Model:
    """A rollout's calls that visit, in the first new chunk and in the first of each later shot,
    also those levels of the `longer` schedule that lie between two of `sigmas`.

    Both fall to 0. Where `longer` holds all of `sigmas`, as simple schedules of 4 and 2 or 1 steps,
    the chunk comes out as one that was made in the longer schedule, noise included.
    """
    own, levels = sigmas.tolist(), longer.tolist()
    given = sum(chunk.given for chunk in chunks)
    firsts = [
        i
        for i, chunk in enumerate(chunks)
        if not chunk.given and (i == given or chunk.start_frame == chunk.shot)
    ]
    between = [
        [place for place, level in enumerate(levels) if below < level < above]
        for above, below in zip(own, own[1:])
    ]

    def predict(forward, x, sigma):
        x0 = model.predict(forward, x, sigma)
        if forward.chunk.index in firsts and forward.step < len(
            between
        ):  # a probe or a clean pass counts as the step after the last
            for place in between[forward.step]:
                level = longer[place]
                x0 = model.predict(
                    forward,
                    (1.0 - level) * x0
                    + level * model.noise(forward.chunk.index - given, place - 1, x0),
                    level,
                )
        return x0

    def noise(number, step, like):
        if number + given in firsts:  # the longer schedule's draw at this place
            step = sum(level > own[step + 1] for level in levels) - 1
        return model.noise(number, step, like)

    return Model(predict, model.write, noise)
