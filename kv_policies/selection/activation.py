"""When a selection begins, and until when it lasts."""

from ..state import State, count_of, part_of
from ..take import Chunk


class Activation:
    """Active from the first chunk on that has `active_from` latent frames in reach, its own
    included, to the end of the shot: a cut empties the caches, and the new shot has to fill them
    anew. Each bank is active by itself, since banks hold different frames.
    """

    def __init__(self, active_from: int, total_frames: int):
        self.active_from = active_from
        self.total_frames = total_frames
        self.most_in_reach = 0  # latent frames, so far
        self.began_with = (
            0  # latent frames in reach where the first bank became active; 0: none did
        )
        # First latent frame of the chunk with which a bank became active, by the bank's name.
        self.since: dict[str, int] = {}

    def is_active(self, bank: str, chunk: Chunk, reach: int) -> bool:
        """Whether frames are selected for a chunk that has `reach` latent frames in reach.

        Later chunks stay active, though a short last one has fewer frames in reach. Earlier chunks,
        which a recache runs again, read as they did before.
        """
        self.most_in_reach = max(self.most_in_reach, reach)
        since = self.since.get(bank, -1)
        if since >= chunk.cue.shot:
            return chunk.start_frame >= since
        if reach < self.active_from:
            return False
        self.began_with = self.began_with or reach
        self.since[bank] = chunk.start_frame
        return True

    def state(self) -> State:
        return {
            "most_in_reach": self.most_in_reach,
            "began_with": self.began_with,
            "active_since": dict(self.since),
        }

    def restore(self, state: State):
        self.most_in_reach = count_of(state, "most_in_reach", self.total_frames)
        since = part_of(state, "active_since", dict)
        # Memories that an earlier version saved have no such entry.
        began_with = self.active_from if since else 0
        self.began_with = count_of({"began_with": began_with, **state}, "began_with", 2**31)
        self.since = {bank: count_of(since, bank, self.total_frames) for bank in since}
