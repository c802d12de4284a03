"""Refuse wrong constant inputs of a node when a graph is queued, by the same code that would refuse
them at run time.
"""

from collections.abc import Callable


def accepts(node, check: Callable, **values) -> bool | str:
    """For `validate_inputs` of a node's class: True, or what is wrong, in a sentence. `check` is
    called with the values and raises ValueError for wrong ones.

    The host reports whatever is wrong once at every input that `validate_inputs` names: name those
    alone that exclude each other, or that no range can describe.

    A linked input is None here, and is checked when the node runs. The host does not check ranges
    and choices of inputs that `validate_inputs` names, so the schema's are checked here.
    """
    for part in node.define_schema().inputs:
        value = values.get(part.id)
        allowed = "" if value is None else allowed_instead(value, part.as_dict())
        if allowed:
            return f"{part.id} is {value!r}. Use {allowed}."
    if None in values.values():
        return True
    try:
        check(**values)
    except ValueError as error:
        return str(error)
    return True


def allowed_instead(value, schema: dict) -> str:
    """What an input's schema allows, where `value` is none of it; else an empty string."""
    if "options" in schema and value not in schema["options"]:
        return f"one of: {', '.join(schema['options'])}"
    if "min" in schema and not schema["min"] <= value <= schema["max"]:
        return f"{schema['min']:g} to {schema['max']:g}"
    return ""
