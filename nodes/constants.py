"""What is wrong with a node's constant inputs is told when a graph is queued, by the same code that would refuse it at run time."""
from collections.abc import Callable


def accepts(check: Callable, **values) -> bool | str:
    """For `validate_inputs`: True, or the sentence of `check`'s ValueError. A linked input is None there, and is checked when the node runs.

    The host leaves the ranges and choices of inputs that `validate_inputs` names to it, so `check` must hold them.
    """
    if None in values.values():
        return True
    try:
        check(**values)
    except ValueError as error:
        return str(error)
    return True
