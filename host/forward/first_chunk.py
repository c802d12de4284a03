"""Models of one or two steps that make their first chunk in more (Causal-Forcing++, arXiv
2605.15141).
"""

from dataclasses import replace

from torch import Tensor

from ...kv_policies import Chunk, Forward
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
        chunk.index
        for chunk in chunks
        if not chunk.given and (chunk.index == given or chunk.start_frame == chunk.cue.shot)
    ]
    # Places in the longer schedule of the levels below each step's own.
    between = [
        [place for place, level in enumerate(levels) if below < level < above]
        for above, below in zip(own, own[1:])
    ]

    def predict(forward: Forward, x: Tensor, sigma: Tensor) -> Tensor:
        x0 = model.predict(forward, x, sigma)
        # A probe or a clean pass counts as the step after the last, and has no levels below.
        if forward.noise_number not in firsts or forward.step >= len(between):
            return x0
        between_steps = replace(forward, features="")  # forecasts know whole steps alone
        for place in between[forward.step]:
            level = longer[place]
            noise = model.noise(forward.noise_number - given, place - 1, x0)
            x0 = model.predict(between_steps, (1.0 - level) * x0 + level * noise, level)
        return x0

    def noise(number: int, step: int, like: Tensor) -> Tensor:
        if number + given in firsts:  # the longer schedule's draw at this place
            step = sum(level > own[step + 1] for level in levels) - 1
        return model.noise(number, step, like)

    return Model(predict, model.write, noise)
