"""Does a take show again what its context showed? Two measures over pictures, with models from the
user's own folders.

direct.py   `direct_box`: the same box of each picture, by DINOv2; CMBench's authors' own ablation,
            and not CMBench's score
own.py      `own_measure`: what a detector finds, cut out by its mask, by DINOv2; ours. CMBench's
            own evaluator is not public

Both get pictures and `Reference`s (reference.py); models.py loads the folders.
"""

from .direct import direct_box
from .own import own_measure
from .reference import Reference, pixel_box

__all__ = ["Reference", "direct_box", "own_measure", "pixel_box"]
