"""Words for sentences to a user."""


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 chunk", "2 chunks"."""
    return f"{number} {noun}" + "s" * (number != 1)
