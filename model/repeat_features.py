"""Item statistics to candidates for repetition: which items of a history, and what is known of each.

Shapes: B contexts, N candidates, F features.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.catalogue import Catalogue
from model.features import hash_buckets
from state.item_statistics import (
    DAY_MS,
    HALF_LIVES_DAYS,
    ItemStatistics,
    Records,
    decayed_counts,
    strongest,
)

NUM_FEATURES = 2 * len(HALF_LIVES_DAYS) + 12
STRENGTH = len(HALF_LIVES_DAYS) - 1
"""The feature that is the log of the count under the longest half-life."""
_SMALLEST_COUNT = 1e-3


@dataclass(frozen=True)
class RepeatCandidates:
    """Distinct items of some contexts' whole histories."""

    items: Tensor
    """[B, N]: catalogue indices; -1 is padding."""
    sids: Tensor
    """[B, N]: their SID numbers, or -1."""
    rows: Tensor
    """[B, N]: their rows in tables of item ids."""
    features: Tensor
    """[B, N, F]: float32; 0 in padding."""

    @property
    def real(self) -> Tensor:
        """[B, N]: true where there is a candidate."""
        return self.items >= 0


def repeat_candidates(
    statistics: Sequence[ItemStatistics],
    catalogue: Catalogue,
    item_buckets: int,
    max_items: int,
) -> RepeatCandidates:
    """The strongest items of each context that the catalogue has and that were not, at last, disliked.

    `item_buckets` are table rows.
    """
    chosen = [_choose(context, catalogue, max_items) for context in statistics]
    num_columns = max((len(items) for items in chosen), default=0)
    indices = np.full((len(chosen), num_columns), -1)
    features = np.zeros((len(chosen), num_columns, NUM_FEATURES), np.float32)
    for row, (context, items) in enumerate(zip(statistics, chosen, strict=True)):
        if len(items):
            indices[row, : len(items)] = catalogue.find(items["item_id"])
            features[row, : len(items)] = repeat_features(context.history, items)
    sids = np.where(indices >= 0, catalogue.bucket_of_item[indices], -1)
    rows = hash_buckets(np.where(indices >= 0, catalogue.item_ids[indices], 0), item_buckets)
    return RepeatCandidates(*map(torch.from_numpy, (indices, sids, rows, features)))


def _choose(context: ItemStatistics, catalogue: Catalogue, max_items: int) -> Records:
    items = context.items
    known = catalogue.find(items["item_id"]) >= 0
    if len(context.disliked):
        known &= ~np.isin(items["item_id"], context.disliked["item_id"])
    return strongest(items[known], max_items)


def repeat_features(history: Records, items: Records) -> npt.NDArray[np.float32]:
    """[N, F], as of the history's newest interaction: a replay of old events sees what they saw.

    Logarithms of: decayed counts, their shares of the history's; interactions, visits, share of visits, the history's
    visits and interactions; days and visits since the last one; mean interval, whether there is one, how long overdue;
    days since the first; the history's own mean interval.
    """
    now_ms, num_visits = history["last_time_ms"][0], float(history["visits"][0])
    counts = decayed_counts(items, np.full(len(items), now_ms)) + _SMALLEST_COUNT
    visits, again = items["visits"].astype(np.float64), items["visits"] > 1
    since_last = np.log1p((now_ms - items["last_time_ms"]) / DAY_MS)
    interval = np.log1p(
        (items["last_time_ms"] - items["first_time_ms"]) / DAY_MS / np.maximum(visits - 1, 1)
    )
    history_days = (now_ms - history["first_time_ms"][0]) / DAY_MS
    columns = [
        *np.log(counts).T,
        *np.log(counts / (1 + history["decayed"])).T,
        np.log(items["count"]),
        np.log(visits),
        np.log(visits / num_visits),
        np.full(len(items), np.log(num_visits)),
        np.full(len(items), np.log(history["count"][0])),
        since_last,
        np.log1p(num_visits - items["last_visit"]),
        interval,
        again,
        np.where(again, since_last - interval, 0),
        np.log1p((now_ms - items["first_time_ms"]) / DAY_MS),
        np.full(len(items), np.log1p(history_days / num_visits)),
    ]
    return np.stack(columns, 1).astype(np.float32)
