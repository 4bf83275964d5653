"""Which users have counted for which items lately: a table of fixed size, so that nobody makes an item trend alone."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from state.compiled import compiled
from state.event_hash import hash_slices

_PLACES = 8
"""Where an entry may lie: so many slots from the one its hash names."""

_Hashes = npt.NDArray[np.uint64]


class CountedUsers:
    """Remembers triples of user, item and period by 64-bit hashes.

    Exact while the table has room. In a full one a new triple takes the place of another: a triple is forgotten, and may
    count again, after about as many new ones as there are slots.
    """

    def __init__(self, num_slots: int) -> None:
        """8 bytes for each slot; a power of two, at least 8."""
        self._slots = np.zeros(num_slots, np.uint64)
        # Compiles, or loads what was compiled: not while records wait.
        self.first([], np.zeros(0, np.uint64), np.zeros(0, np.int64))

    def first(
        self,
        users: Sequence[bytes],
        item_ids: npt.NDArray[np.uint64],
        periods: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.bool_]:
        """Remember triples; true for each that was not there."""
        lengths = np.fromiter(map(len, users), np.int64, len(users))
        ends = np.cumsum(lengths)
        data = np.frombuffer(b"".join(users), np.uint8)
        salts = item_ids * np.uint64(0x9E3779B97F4A7C15) + periods.astype(np.uint64)
        hashes = hash_slices(data, ends - lengths, ends, salts.view(np.int64))
        return _remember(self._slots, hashes, _PLACES)


@compiled
def _remember(slots: _Hashes, hashes: _Hashes, places: int) -> npt.NDArray[np.bool_]:
    """Hashes are never 0, which is an empty slot. Slots fill from the front of the places, so the first gap ends a search."""
    new = np.ones(len(hashes), np.bool_)
    mask = np.uint64(len(slots) - 1)
    for i in range(len(hashes)):
        wanted = hashes[i]
        home = wanted & mask
        chosen = (home + (wanted >> np.uint64(32)) % np.uint64(places)) & mask
        for step in range(places):
            slot = (home + np.uint64(step)) & mask
            if slots[slot] == wanted:
                new[i] = False
                break
            if slots[slot] == 0:
                chosen = slot
                break
        if new[i]:
            slots[chosen] = wanted
    return new
