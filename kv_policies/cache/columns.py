"""What a bank knows of its rows: of which token each is, and where in time its key stands."""

import torch
from torch import Tensor

from ..state import State, damaged, tensor_of
from ..take import Span

DTYPES = {
    "frame": torch.long,
    "cell": torch.long,
    "position": torch.float64,
    "source": torch.long,
}


class Columns:
    """Of each row a `frame`, a `cell` (row * w + column of the token in its latent frame), a
    `position` (the temporal position that its key is rotated at) and, where rows are merged, a
    `source` (the token that it counts as, -1 for none).

    They lie on the CPU, so that policies decide without waiting for the device. `[capacity]` where
    all layers hold the same rows, `[layers, capacity]` where each holds its own.
    """

    def __init__(self, capacity: int, layers: int | None = None, merges: bool = False):
        """`layers`: how many there are, where each holds its own rows; with `merges` there is a
        source.
        """
        self._lead = () if layers is None else (layers,)
        self.names = [name for name in DTYPES if merges or name != "source"]
        for name in self.names:
            setattr(self, name, torch.empty(*self._lead, capacity, dtype=DTYPES[name]))

    def write(self, rows: slice, span: Span, tokens: int):
        """These rows are those of a span, of so many tokens a frame."""
        positions = torch.tensor(span.positions, dtype=torch.float64)
        self.frame[..., rows] = torch.tensor(span.numbers).repeat_interleave(tokens)
        self.position[..., rows] = positions.repeat_interleave(tokens)
        self.cell[..., rows] = torch.arange(tokens).repeat(len(span))
        if "source" in self.names:
            self.source[..., rows] = self.frame[..., rows] * tokens + self.cell[..., rows]

    def gather(self, rows: Tensor, target: slice):
        """Copy rows (long) to the rows `target`, in all layers."""
        for name in self.names:
            column = getattr(self, name)
            column[..., target] = column[..., rows]

    def grow(self, capacity: int, length: int):
        """Make room for `capacity` rows; the first `length` rows stay."""
        for name in self.names:
            old = getattr(self, name)
            new = old.new_empty(*self._lead, capacity)
            new[..., :length] = old[..., :length]
            setattr(self, name, new)

    def take(self, other: "Columns", rows: Tensor, capacity: int):
        """Make room for `capacity` rows, which begin with `rows` (long) of other columns."""
        self.grow(capacity, 0)
        for name in self.names:
            getattr(self, name)[..., : len(rows)] = getattr(other, name)[..., rows]

    def are_alike(self, rows: slice) -> bool:
        """Whether all layers hold the same tokens at the same positions in these rows."""
        if not self._lead:
            return True
        columns = [getattr(self, name)[:, rows] for name in self.names]
        return all(torch.equal(column, column[:1].expand_as(column)) for column in columns)

    def of_first_layer(self, name: str) -> Tensor:
        """A column of the first layer, `[capacity]`: of every one where `are_alike` holds."""
        column = getattr(self, name)
        return column[0] if self._lead else column

    def choose(self, layer: int, state: State, rows: Tensor, target: slice):
        """In one layer, the rows `target` become these rows of an earlier `state`."""
        for name in self.names:
            getattr(self, name)[layer, target] = state[name][layer, rows]

    def state(self, length: int) -> State:
        """A copy of the first `length` rows."""
        return {name: getattr(self, name)[..., :length].clone() for name in self.names}

    def checked(self, state: State, tokens: int) -> State:
        """What `state` gave, of so many tokens a frame; KVMemoryError where its rows are not tokens
        of a take.
        """
        shape = *self._lead, None
        saved = {}
        for name in self.names:
            saved[name] = tensor_of(state, name, DTYPES[name], *shape)
            shape = saved[name].shape
        frame, cell = saved["frame"], saved["cell"]
        ascends = bool(((frame * tokens + cell).diff() > 0).all() and (frame >= 0).all())
        in_frame = bool((cell >= 0).all() and (cell < tokens).all())
        if not (ascends and in_frame):
            raise damaged(f"its {frame.shape[-1]} rows are not tokens of a take in their order")
        if "source" in saved:
            # A row can count as no token of a later frame than the last one.
            end = (int(frame[..., -1].max()) + 1) * tokens if frame.numel() else 0
            if not bool(((saved["source"] >= -1) & (saved["source"] < end)).all()):
                raise damaged("its rows count as tokens that the take does not have")
        return saved

    def restore(self, checked: State):
        """Begin with checked rows, for which there is room."""
        for name in self.names:
            getattr(self, name)[..., : checked[name].shape[-1]] = checked[name]
