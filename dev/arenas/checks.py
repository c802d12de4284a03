"""What is found before the first take, and not after an hour."""

from collections.abc import Iterable

from .camera import control_of
from .maker import Maker
from .sizes import loaded_model, plan_for


def check_takes(maker: Maker, given: Iterable[int], new: int, size: tuple[int, int], camera: str):
    """ValueError, in a sentence, where the row's model, which is loaded, cannot make a take of
    `new` latent frames behind one of the `given` numbers of them.
    """
    model = loaded_model(maker, size)
    for frames in sorted(given):
        plan_for(maker, model, frames, new)
        control_of(maker, camera, frames, new, size)
