"""Rankers that count: what everybody takes, what a user took, and both with decay."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bench.quality.complete_journey import Task
from model.training.histories import Index
from state.item_statistics import DAY_MS

NUM_RANKED = 50
_NEWEST = 500
_HALF_LIFE_DAYS, _BASE, _POPULARITY_WEIGHT = 28, 0.1, 30


@dataclass(frozen=True)
class Counts:
    """Item ids by a weighted count of the user's rows, plus popularity."""

    newest: int | None = None
    half_life_days: float | None = None
    base: float = 0.0
    popularity_weight: float = 1.0

    def rank(self, task: Task, cuts: Index) -> Iterator[np.ndarray]:
        """The best for the basket at each cut."""
        ids = task.items.item_ids
        histories = task.histories
        places = np.searchsorted(ids, histories.rows["item_id"]).clip(max=len(ids) - 1)
        known = ids[places] == histories.rows["item_id"]
        times = histories.rows["event_time_ms"]
        popularity = task.items.counts / task.items.counts.sum() * self.popularity_weight
        for cut in cuts:
            start = int(histories.user_start[cut])
            if self.newest is not None:
                start = max(start, cut - self.newest)
            own = places[start:cut][known[start:cut]]
            weights = self._weights(times[start:cut][known[start:cut]], times[cut])
            scores = np.bincount(own, weights, minlength=len(ids)) + popularity
            best = np.argpartition(-scores, NUM_RANKED)[:NUM_RANKED]
            yield ids[best[np.argsort(-scores[best])]]

    def _weights(self, times_ms: Index, now_ms: int) -> np.ndarray:
        if self.half_life_days is None:
            return np.ones(len(times_ms))
        age_days: np.ndarray = (now_ms - times_ms) / DAY_MS
        return np.exp2(-age_days / self.half_life_days) + self.base


BASELINES = {
    "popularity": Counts(newest=0),
    "own_counts_500": Counts(newest=_NEWEST),
    "best_counts": Counts(
        half_life_days=_HALF_LIFE_DAYS, base=_BASE, popularity_weight=_POPULARITY_WEIGHT
    ),
}
