"""How popular items are at the moment of a request: counts of all users, decayed to it, by item and by row of the item table."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.features import hash_buckets
from model.query import ItemIds

LEAST_COUNT = 3.0
"""Lighter items are not told apart: below it a single user may be all, and of what trends only heavier ones are published."""


@dataclass(frozen=True, eq=False)
class Popularity:
    """Of one moment."""

    counts: Tensor | None = None
    """[I], by row; None: as of the training's end, which the network knows."""
    item_ids: ItemIds | None = None
    """Ascending."""
    item_counts: npt.NDArray[np.float64] | None = None
    """In their order."""
    total: float = 0.0
    """Of all items, those that are not named included."""

    @staticmethod
    def of(
        item_ids: ItemIds, counts: npt.NDArray[np.float64], total: float, item_buckets: int
    ) -> "Popularity":
        """[N] each; those in one row are added up. Without items nothing is known but the training's end."""
        if not len(item_ids):
            return AT_TRAINING_END
        rows = torch.from_numpy(hash_buckets(item_ids, item_buckets))
        table = torch.zeros(item_buckets, dtype=torch.float64)
        by_row = table.index_add_(0, rows, torch.from_numpy(counts)).float()
        distinct, places = np.unique(item_ids, return_inverse=True)
        by_item = np.bincount(places, counts).astype(np.float64)
        return Popularity(by_row, distinct, by_item, max(total, float(by_item.sum())))

    def of_rows(self, rows: Tensor) -> Tensor | None:
        """As RepeatCandidates has it, of items by their rows."""
        return None if self.counts is None else self.counts[rows]

    def of_items(self, item_ids: ItemIds) -> npt.NDArray[np.float64] | None:
        """Of these items, 0 for those that nobody took; None: as of the training's end."""
        if self.item_ids is None or self.item_counts is None:
            return None
        places = np.searchsorted(self.item_ids, item_ids).clip(max=len(self.item_ids) - 1)
        return np.where(self.item_ids[places] == item_ids, self.item_counts[places], 0.0)


AT_TRAINING_END = Popularity()
