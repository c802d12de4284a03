"""What is wrong with a node's constant inputs is told when a graph is queued, by the same code that
would refuse it at run time.
"""

from collections.abc import Callable


def accepts(node, check: Callable, **values) -> bool | str:
    """For `validate_inputs` of a node's class: True, or a sentence, that of `check`'s ValueError. A
    linked input is None there, and is checked when the node runs.

    The host leaves the ranges and choices of inputs that `validate_inputs` names to it, so the
    schema's are held here.
    """
    for part in node.define_schema().inputs:
        if values.get(part.id) is not None and (told := outside(values[part.id], part.as_dict())):
            return f"{part.id} is {values[part.id]!r}. Use {told}."
    if None in values.values():
        return True
    try:
        check(**values)
    except ValueError as error:
        return str(error)
    return True


def outside(value, allowed: dict) -> str:
    """What an input's schema allows, where a value is none of it; else nothing."""
    if "options" in allowed and value not in allowed["options"]:
        return f"one of: {', '.join(allowed['options'])}"
    return (
        f"{allowed['min']:g} to {allowed['max']:g}"
        if "min" in allowed and not allowed["min"] <= value <= allowed["max"]
        else ""
    )
