"""Rankers that count: what everybody takes, what a user took, and both with decay."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bench.quality.task import NUM_RANKED, Budget, ItemIds, Task
from bench.quality.ties import best_places
from model.training.histories import Index
from state.item_statistics import DAY_MS


@dataclass
class Counts:
    """Items by a weighted count of the user's rows, plus popularity."""

    name: str
    newest: int | None = None
    half_life_days: float | None = None
    base: float = 0.0
    popularity_weight: float = 1.0
    seed: int = 0

    def fit(self, task: Task, budget: Budget) -> None:
        """Nothing is learned."""
        self.seed = budget.seed

    def rank(self, task: Task, cuts: Index) -> Iterator[ItemIds]:
        """The best for the basket at each cut."""
        ids = task.items.item_ids
        histories = task.histories
        places = np.searchsorted(ids, histories.rows["item_id"]).clip(max=len(ids) - 1)
        known = ids[places] == histories.rows["item_id"]
        times = histories.rows["event_time_ms"]
        popularity = task.items.counts / task.items.counts.sum() * self.popularity_weight
        for cut in cuts.tolist():
            start = int(histories.user_start[cut])
            if self.newest is not None:
                start = max(start, cut - self.newest)
            own = places[start:cut][known[start:cut]]
            weights = self._weights(times[start:cut][known[start:cut]], times[cut])
            scores = np.bincount(own, weights, minlength=len(ids)) + popularity
            if not task.repeats:
                scores[np.searchsorted(ids, task.seen(cut))] = -np.inf
            yield ids[best_places(scores, NUM_RANKED, self.seed, cut)]

    def _weights(self, times_ms: Index, now_ms: int) -> np.ndarray:
        if self.half_life_days is None:
            return np.ones(len(times_ms))
        age_days: np.ndarray = (now_ms - times_ms) / DAY_MS
        return np.exp2(-age_days / self.half_life_days) + self.base


def popularity() -> Counts:
    """What everybody takes."""
    return Counts("popularity", newest=0)


def own_counts_500() -> Counts:
    """How often the user took it among the newest 500 rows."""
    return Counts("own_counts_500", newest=500)


def best_counts() -> Counts:
    """A half-life of 28 days, a base and popularity: the best counts known."""
    return Counts("best_counts", half_life_days=28, base=0.1, popularity_weight=30)
