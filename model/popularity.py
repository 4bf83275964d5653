"""How popular items are at the moment of a request: counts of all users, decayed to it, by row of the item table."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.features import hash_buckets
from model.query import ItemIds


@dataclass(frozen=True, eq=False)
class Popularity:
    """Of one moment."""

    counts: Tensor | None = None
    """[I]; None: as of the training's end, which the network knows."""

    @staticmethod
    def of(item_ids: ItemIds, counts: npt.NDArray[np.float64], item_buckets: int) -> "Popularity":
        """[N] each; those in one row are added up. Without items nothing is known but the training's end."""
        if not len(item_ids):
            return AT_TRAINING_END
        rows = torch.from_numpy(hash_buckets(item_ids, item_buckets))
        table = torch.zeros(item_buckets, dtype=torch.float64)
        return Popularity(table.index_add_(0, rows, torch.from_numpy(counts)).float())

    def of_rows(self, rows: Tensor) -> Tensor | None:
        """As RepeatCandidates has it, of items by their rows."""
        return None if self.counts is None else self.counts[rows]


AT_TRAINING_END = Popularity()
