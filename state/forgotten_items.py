"""The items a user had forgotten: what still comes about them, from the time before the request, is refused."""

from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from state.interaction import Rows

MAX_FORGOTTEN = 256
"""How many a user's list holds: those with the newest requests."""

FORGOTTEN = np.dtype([("item_id", "<u8"), ("until_ms", "<i8")])


@dataclass(frozen=True, eq=False)
class ForgottenItems:
    """A list that depends on what was asked alone, neither on the order nor on repetitions."""

    entries: npt.NDArray[np.void] = field(default_factory=lambda: np.empty(0, FORGOTTEN))
    """Each item once, in the order of `until_ms`, then of `item_id`."""

    @property
    def until_ms(self) -> int:
        """Interactions with a later event time are none of this list's; 0 when it is empty."""
        return int(self.entries["until_ms"][-1]) if len(self.entries) else 0

    def having(self, item_id: int, until_ms: int) -> Self:
        """With one more item, or a later time for it; itself when that says nothing new."""
        same = self.entries["item_id"] == item_id
        if np.any(self.entries["until_ms"][same] >= until_ms):
            return self
        entry = np.array([(item_id, until_ms)], FORGOTTEN)
        entries = np.concatenate([self.entries[~same], entry])
        order = np.lexsort((entries["item_id"], entries["until_ms"]))
        return type(self)(entries[order][-MAX_FORGOTTEN:])

    def refuse(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Mask of the interactions that belong to a forgotten past."""
        if not len(self.entries):
            return np.zeros(len(rows), np.bool_)
        by_item = self.entries[np.argsort(self.entries["item_id"])]
        nearest = np.searchsorted(by_item["item_id"][:-1], rows["item_id"])
        found = by_item[nearest]
        mask: npt.NDArray[np.bool_] = (found["item_id"] == rows["item_id"]) & (
            rows["event_time_ms"] <= found["until_ms"]
        )
        return mask


NOTHING_FORGOTTEN = ForgottenItems()
