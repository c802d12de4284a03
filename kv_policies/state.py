"""What a run writes down to go on later, and reading it back without trusting it."""

from typing import Any

import torch
from torch import Tensor

State = dict[str, Any]  # tensors, plain values, and lists and dicts of these


class KVMemoryError(ValueError):
    """A saved memory that cannot be used: what came, what is needed, what to change."""

    __module__ = "builtins"  # who prints an error with its type names it without our folders


def damaged(what: str) -> KVMemoryError:
    return KVMemoryError(
        f"The KV memory is damaged: {what}. Use another copy of the file, or make the take anew."
    )


def part_of(state: State, name: str, kind: type):
    """An entry of a state, which must be of that kind."""
    value = state.get(name) if isinstance(state, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool) and kind is not bool:
        raise damaged(f"'{name}' is {type(value).__name__} and must be {kind.__name__}")
    return value


def tensor_of(state: State, name: str, dtype: torch.dtype, *shape: int | None) -> Tensor:
    """A tensor of a state; None in `shape` allows any size."""
    value = part_of(state, name, Tensor)
    if (
        value.dtype != dtype
        or value.ndim != len(shape)
        or any(want not in (None, size) for want, size in zip(shape, value.shape))
    ):
        raise damaged(
            f"'{name}' is {value.dtype} {list(value.shape)} and must be {dtype} "
            f"{['any' if size is None else size for size in shape]}"
        )
    return value


def list_of(state: State, name: str, length: int) -> list:
    values = part_of(state, name, list)
    if len(values) != length:
        raise damaged(f"'{name}' has {len(values)} entries and must have {length}")
    return values


def counts_of(state: State, name: str, most: int, length: int | None = None) -> list[int]:
    """A list of whole numbers from 0 to `most`, apart from the state's own: who takes it over may
    count on in it.
    """
    values = part_of(state, name, list)
    if length not in (None, len(values)) or any(
        type(value) is not int or not 0 <= value <= most for value in values
    ):
        raise damaged(
            f"'{name}' must be a list of whole numbers from 0 to {most}"
            + ("" if length is None else f", {length} of them")
        )
    return list(values)


def count_of(state: State, name: str, most: int) -> int:
    value = part_of(state, name, int)
    if not 0 <= value <= most:
        raise damaged(f"'{name}' is {value} and must be from 0 to {most}")
    return value
