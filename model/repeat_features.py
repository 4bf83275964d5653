"""Item statistics to candidates: the items of a history, popular ones that it lacks, and what is known of each.

Shapes: B contexts, N candidates, F features.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.catalogue import Catalogue
from model.features import FeatureConfig, item_rows
from model.kind_features import NUM_KIND_FEATURES, kind_features
from model.moment_features import NUM_MOMENT_FEATURES, moment_features
from state.item_statistics import (
    DAY_MS,
    HALF_LIVES_DAYS,
    STATISTICS,
    ItemStatistics,
    Records,
    decayed_counts,
    strongest,
)

_NUM_OWN_FEATURES = 2 * len(HALF_LIVES_DAYS) + 14
NUM_FEATURES = _NUM_OWN_FEATURES + 2 * NUM_KIND_FEATURES + NUM_MOMENT_FEATURES
STRENGTH = len(HALF_LIVES_DAYS) - 1
"""The feature that is the log of the count under the longest half-life."""
SINCE_LAST = 2 * len(HALF_LIVES_DAYS) + 5
"""The feature that is the log of one and the days since the item came last."""
NEW = _NUM_OWN_FEATURES - 1
"""The feature that is 1 for items that the history lacks, else 0."""
_SMALLEST_COUNT = 1e-3


@dataclass(frozen=True)
class RepeatCandidates:
    """Distinct items of some contexts' whole histories, then popular ones that these lack."""

    items: Tensor
    """[B, N]: catalogue indices; -1 is padding."""
    sids: Tensor
    """[B, N]: their SID numbers, or -1."""
    rows: Tensor
    """[B, N, item_hashes]: of the item table, whose sum is an item's vector; other tables of items go by the first."""
    features: Tensor
    """[B, N, F]: float32; 0 in padding."""
    popularity: Tensor | None = None
    """[B, N]: how often all users took the item lately, decayed to the moment of the request; None: as of the training's end."""

    @property
    def real(self) -> Tensor:
        """[B, N]: true where there is a candidate."""
        return self.items >= 0

    @property
    def first_rows(self) -> Tensor:
        """[B, N]: by which items are known to tables of one row each."""
        return self.rows[..., 0]

    @property
    def new(self) -> Tensor:
        """[B, N]: true where the history lacks the candidate."""
        return self.features[..., NEW] > 0


def repeat_candidates(
    statistics: Sequence[ItemStatistics],
    catalogue: Catalogue,
    config: FeatureConfig,
    max_items: int,
    max_popular: int = 0,
    times_ms: Sequence[int] | None = None,
) -> RepeatCandidates:
    """The strongest items of each context that the catalogue has and that were not, at last, disliked.

    With them the most popular of the catalogue, as far as the history lacks them; none without a history. `times_ms`: when
    each context is asked; None: with its newest interaction.
    """
    chosen = [_choose(context, catalogue, max_items, max_popular) for context in statistics]
    num_columns = max((len(items) for items in chosen), default=0)
    indices = np.full((len(chosen), num_columns), -1)
    features = np.zeros((len(chosen), num_columns, NUM_FEATURES), np.float32)
    for row, (context, items) in enumerate(zip(statistics, chosen, strict=True)):
        if len(items):
            found = catalogue.find(items["item_id"])
            newest_ms = int(context.history["last_time_ms"][0])
            asked_ms = newest_ms if times_ms is None else int(times_ms[row])
            indices[row, : len(items)] = found
            features[row, : len(items)] = np.concatenate(
                [
                    repeat_features(context.history, items),
                    *(
                        kind_features(context.history, items, catalogue.columns[kind][found])
                        for kind in ("tags", "author_ids")
                    ),
                    moment_features(context.history, items, asked_ms),
                ],
                1,
            )
    sids = np.where(indices >= 0, catalogue.bucket_of_item[indices], -1)
    rows = item_rows(np.where(indices >= 0, catalogue.item_ids[indices], 0), config)
    return RepeatCandidates(*map(torch.from_numpy, (indices, sids, rows, features)))


def _choose(
    context: ItemStatistics, catalogue: Catalogue, max_items: int, max_popular: int
) -> Records:
    items = context.items
    known = catalogue.find(items["item_id"]) >= 0
    disliked = context.disliked["item_id"]
    if len(disliked):
        known &= ~np.isin(items["item_id"], disliked)
    had = strongest(items[known], max_items)
    if not (max_popular and len(context.history)):
        return had
    popular = catalogue.item_ids[catalogue.by_popularity()[:max_popular]]
    lacked = popular[~np.isin(popular, np.concatenate([items["item_id"], disliked]))]
    return _joined(had, _never_had(context.history, lacked))


def _never_had(history: Records, item_ids: npt.NDArray[np.uint64]) -> Records:
    """Records of no count, as if they had come just before the history began."""
    records = np.zeros(len(item_ids), STATISTICS)
    records["item_id"] = item_ids
    records["count"] = records["visits"] = 1
    records["first_time_ms"] = records["last_time_ms"] = history["first_time_ms"][0]
    return records


def _joined(had: Records, lacked: Records) -> Records:
    records = np.empty(len(had) + len(lacked), STATISTICS)
    records[: len(had)], records[len(had) :] = had, lacked
    return records


def repeat_features(history: Records, items: Records) -> npt.NDArray[np.float32]:
    """[N, F], as of the history's newest interaction: a replay of old events sees what they saw.

    Logarithms of: decayed counts, their shares of the history's; interactions, visits, share of visits, the history's
    visits and interactions; days and visits since the last one; mean interval, whether there is one, how long overdue;
    days since the first; the history's own mean interval, interactions per visit; and whether the history lacks the item.
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
        np.full(len(items), np.log(history["count"][0] / num_visits)),
        items["last_visit"] == 0,
    ]
    return np.stack(columns, 1).astype(np.float32)
