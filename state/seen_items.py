"""Which items a user's lifecycle segment holds: exact, for filters that the rows a request reads do not cover."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from state.chunk_codec import decode_items


@dataclass(frozen=True, kw_only=True)
class KnownSeen:
    """What a reader has of a user's seen items: those of everything before `end`."""

    epoch: int
    hole_end: int
    """As in UserDelta."""
    end: int


@dataclass(frozen=True, kw_only=True)
class SeenItems:
    """The distinct items of the positions [start, end); what is newer is in the mid-term and recent segments.

    A reader that adds these to what it knew has every item of the kept history before `end`. It may also have items
    whose last interaction left the history since (`first_position` moved on); to drop these, it reads whole again.
    """

    epoch: int
    hole_end: int
    first_position: int
    """Oldest interaction that is kept."""
    start: int
    """The reader's end where that holds, else `first_position`: then this is everything, and nothing else counts."""
    end: int
    """The lifecycle boundary."""
    item_ids: npt.NDArray[np.uint64]
    """Ascending, each once."""

    @property
    def known(self) -> KnownSeen:
        """What to ask for the rest with, later."""
        return KnownSeen(epoch=self.epoch, hole_end=self.hole_end, end=self.end)


def distinct_items(chunks: Sequence[bytes]) -> npt.NDArray[np.uint64]:
    """Items of encoded chunks, ascending, each once. Raises CorruptValue or UnknownFormat."""
    if not chunks:
        return np.empty(0, np.uint64)
    item_ids = np.sort(np.concatenate([decode_items(chunk) for chunk in chunks]))
    first = np.ones(len(item_ids), np.bool_)
    first[1:] = item_ids[1:] != item_ids[:-1]
    return np.asarray(item_ids[first], np.uint64)
