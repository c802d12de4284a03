"""All layers of a bank in fewer bits: which rows are coded, and when."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..cache.pages import BankPages
from ..state import State, damaged, list_of
from .coded import SCALES, Format
from .coded_keys import GROUP, full_groups
from .coded_pages import CodedPages, Move, ReadBuffer, Room, RowLayout, saved_layout


class Settled(NamedTuple):
    """Rows [0, sink_rows) stay in full precision, rows [sink_rows, coded_end) are to be coded."""

    sink_rows: int
    coded_end: int


class CodedBankPages(BankPages):
    """The first `sink_frames` latent frames of a shot and the latest `full_frames` of the take stay
    in full precision; between them, whole groups of tokens are coded.
    """

    def __init__(
        self, layers: list[CodedPages], layout: RowLayout, sink_frames: int, full_frames: int
    ):
        super().__init__(layers)
        self.room = layers[0].room
        self.layout = layout
        self.buffer = layers[0].buffer
        self.sink_frames = sink_frames
        self.full_frames = full_frames
        self.coded_row_bytes = sum(coded_row_bytes(pages) for pages in layers)

    @classmethod
    def empty(
        cls,
        form: Format,
        room: Room,
        capacity: int,
        heads: list[int],
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        sink_frames: int,
        full_frames: int,
    ) -> CodedBankPages:
        layout = RowLayout()
        buffer = ReadBuffer(capacity * max(heads) * head_dim, dtype, device)
        layers = [
            CodedPages(form, room, capacity, count, head_dim, dtype, device, buffer, layout)
            for count in heads
        ]
        return cls(layers, layout, sink_frames, full_frames)

    @property
    def coded_rows(self) -> int:
        return self.layout.groups.tokens

    def settled(self, frame: Tensor, shot: int) -> Settled:
        """Which rows are no longer among the latest. `frame` [S]: the latent frame of each row."""
        oldest_full = max(0, int(frame[-1]) + 1 - self.full_frames) if len(frame) else 0
        sink_end = min(shot + self.sink_frames, oldest_full)
        sink, old = torch.searchsorted(frame, torch.tensor([sink_end, oldest_full])).tolist()
        if self.coded_rows:  # what lies before coded rows is the sink, whatever came later
            sink = self.layout.sink
        start = max(self.layout.coded_end, sink)
        return Settled(max(self.layout.sink, sink), start + max(0, old - start) // GROUP * GROUP)

    def commit(self, frame: Tensor, shot: int):
        """Code the rows that are no longer among the latest."""
        layout, groups = self.layout, self.layout.groups
        settled = self.settled(frame, shot)
        if settled.coded_end <= layout.coded_end:
            return
        to_sink = settled.sink_rows - layout.sink
        count = settled.coded_end - layout.coded_end - to_sink
        sizes = full_groups(count)
        # Groups that have lost tokens may be more than there is room for. Not the room but the
        # number of rows decides, or a bank that grew would differ from one that did not.
        if count and len(groups) + len(sizes) > -(-len(frame) // GROUP):
            self.fill_groups()
        for pages in self.layers:
            pages.encode(to_sink, count, len(frame), sizes)
        layout.sink = settled.sink_rows
        groups.set(torch.cat([groups.sizes, sizes]))

    def fill_groups(self):
        """Code all coded keys in full groups again, see `CodedKeys.fill_groups`."""
        for pages in self.layers:
            pages.fill_groups()
        self.layout.groups.set(full_groups(self.layout.groups.tokens))

    def gather(self, rows: Tensor, target: slice):
        """Copy rows to `target`, each kind of row within its own store. An example: sink 2, coded
        rows 2 to 7; rows 0 and 1 stay, of the others rows 3, 5, 6, 8 and 9 do:

            before   0 1 | 2 3 4 5 6 7 | 8 9        moving rows  3 5 6 | 8 9
            after    0 1 | 3 5 6 | 8 9              target       2 3 4 | 5 6
        """
        layout = self.layout
        sink, coded_end = layout.sink, layout.coded_end
        # 1. Which of the moving rows are sink, coded and latest.
        first_coded, first_latest = torch.searchsorted(
            rows.contiguous(), torch.tensor([sink, coded_end])
        ).tolist()
        moving_sink = rows[:first_coded]
        moving_coded = rows[first_coded:first_latest] - sink
        moving_latest = rows[first_latest:] - coded_end
        # 2. How many of each kind lie before `target`, and stay where they are.
        still_sink = min(target.start, sink)
        still_coded = max(0, min(target.start, coded_end) - sink)
        still_latest = max(0, target.start - coded_end)
        # 3. What is left of the groups.
        kept = torch.cat([torch.arange(still_coded), moving_coded])
        sizes = layout.groups.sizes_of(kept)
        left = sizes.nonzero()[:, 0]
        # 4. The same in each layer; then the new borders.
        place = self.layers[0].place
        move = Move(
            sink=moving_sink.to(place),
            to_sink=still_sink,
            coded=moving_coded.to(place),
            to_coded=still_coded,
            latest=(moving_latest + self.room.sink).to(place),
            to_latest=self.room.sink + still_latest,
            groups=left.to(place),
        )
        for pages in self.layers:
            pages.gather(move)
        layout.sink = still_sink + len(moving_sink)
        layout.groups.set(sizes[left])

    def restore(self, state: State, length: int, held: int):
        saved = list_of(state, "layers", len(self.layers))
        layouts = [saved_layout(layer, self.room, length) for layer in saved]
        sink, sizes = layouts[0]
        if any(s != sink or not torch.equal(other, sizes) for s, other in layouts):
            raise damaged("its layers do not hold the same tokens in fewer bits")
        self.layout.sink = sink
        self.layout.groups.set(sizes.clone())
        super().restore(state, length, held)

    def nbytes(self) -> int:
        return super().nbytes() + self.buffer.nbytes()


def coded_row_bytes(pages: CodedPages) -> float:
    """Bytes of a coded row of one layer: the codes of key and value, the value's scale and zero
    point, and the key's share of its group's.
    """
    _, _, heads, head_dim = pages.k.shape
    codes = 2 * head_dim // pages.keys.form.channels_per_byte
    scales = 2 * SCALES.itemsize * (1 + head_dim / GROUP)
    return heads * (codes + scales)
