"""Rankers that count: what everybody takes, what a user took, and both with decay."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.quality.metrics import score
from bench.quality.rankings import as_table
from bench.quality.targets import find_targets, places_of
from bench.quality.task import NUM_RANKED, Budget, ItemIds, Task
from bench.quality.ties import best_places
from model.training.histories import Index, targets_among
from state.item_statistics import DAY_MS

_TUNED_ON = 1_000


@dataclass(frozen=True)
class Weights:
    """score(item) = sum over the user's rows of it (2^(-age / half-life) + base) + popularity's share * its weight."""

    newest: int | None = None
    """Rows of the user that count; None: all."""
    half_life_days: float | None = None
    """None: a row counts 1."""
    base: float = 0.0
    popularity: float = 1.0
    popularity_days: float | None = None
    """Of the training's end; None: all of it."""


class Counts:
    """Items by a weighted count of the user's rows, plus popularity."""

    def __init__(self, name: str, weights: Weights) -> None:
        """Nothing is counted yet."""
        self.name = name
        self.weights = weights
        self._seed = 0

    def fit(self, task: Task, budget: Budget) -> None:
        """Nothing is learned."""
        self._seed = budget.seed

    def rank(self, task: Task, cuts: Index) -> Iterator[ItemIds]:
        """The best for the basket at each cut."""
        ids, histories, weights = task.items.item_ids, task.histories, self.weights
        places, known = places_of(task, histories.rows["item_id"])
        times = histories.rows["event_time_ms"]
        popularity = popularity_shares(task, weights.popularity_days) * weights.popularity
        for cut in cuts.tolist():
            start = int(histories.user_start[cut])
            if weights.newest is not None:
                start = max(start, cut - weights.newest)
            mask = known[start:cut]
            own = places[start:cut][mask]
            row_weights = self._row_weights(times[start:cut][mask], times[cut])
            scores = np.bincount(own, row_weights, minlength=len(ids)) + popularity
            if not task.repeats:
                scores[places[int(histories.user_start[cut]) : cut]] = -np.inf
            yield ids[best_places(scores, NUM_RANKED, self._seed, cut)]

    def _row_weights(self, times_ms: Index, now_ms: int) -> npt.NDArray[np.float64]:
        if self.weights.half_life_days is None:
            return np.ones(len(times_ms))
        age_days = (now_ms - times_ms) / DAY_MS
        return np.asarray(np.exp2(-age_days / self.weights.half_life_days) + self.weights.base)


class TunedCounts(Counts):
    """The half-life, base and weight of popularity that are best on some of the validation cuts."""

    def __init__(self) -> None:
        """Not tuned yet."""
        super().__init__("best_counts", Weights())

    def fit(self, task: Task, budget: Budget) -> None:
        """Choose by NDCG."""
        super().fit(task, budget)
        grid = [
            Weights(half_life_days=half_life, base=base, popularity=popularity)
            for half_life, base, popularity in product((14, 28, 56), (0, 0.1, 0.3), (10, 30, 100))
        ]
        self.weights = best_on_validation(task, grid, self._with)

    def details(self) -> dict[str, Any]:
        """What was chosen."""
        return asdict(self.weights)

    def _with(self, weights: Weights) -> Counts:
        return Counts(self.name, weights)


def best_on_validation(task: Task, grid: list[Any], make: Callable[[Any], Any]) -> Any:
    """The setting whose (already fitted) ranker has the best NDCG on some of the validation cuts, drawn alike for all."""
    cuts = task.validation_cuts
    if len(cuts) > _TUNED_ON:
        cuts = np.sort(np.random.default_rng(0).choice(cuts, _TUNED_ON, replace=False))
    targets = find_targets(task, cuts)
    ndcg = []
    for setting in grid:
        table = as_table(task, cuts, make(setting).rank(task, cuts))
        ndcg.append(score(task, targets, table).per_cut["ndcg_at_10"].mean())
    return grid[int(np.argmax(ndcg))]


def popularity_shares(task: Task, days: float | None = None) -> npt.NDArray[np.float64]:
    """Per item of the table, its share of the training's targets, or of those of its last days."""
    rows = task.training.rows
    rows = rows[targets_among(rows, task.target_kinds)]
    if days is not None:
        rows = rows[rows["event_time_ms"] > rows["event_time_ms"].max() - days * DAY_MS]
    places, known = places_of(task, rows["item_id"])
    counts = np.bincount(places[known], minlength=len(task.items.item_ids))
    return np.asarray(counts / max(counts.sum(), 1))


def popularity() -> Counts:
    """What everybody takes."""
    return Counts("popularity", Weights(newest=0))


def popularity_4_weeks() -> Counts:
    """What everybody took in the last four weeks of training."""
    return Counts("popularity_4_weeks", Weights(newest=0, popularity_days=28))


def own_counts_50() -> Counts:
    """How often the user took it among the newest 50 rows."""
    return Counts("own_counts_50", Weights(newest=50))


def own_counts_200() -> Counts:
    """How often the user took it among the newest 200 rows."""
    return Counts("own_counts_200", Weights(newest=200))


def own_counts_500() -> Counts:
    """How often the user took it among the newest 500 rows."""
    return Counts("own_counts_500", Weights(newest=500))


def own_counts() -> Counts:
    """How often the user ever took it."""
    return Counts("own_counts", Weights())


def recent_counts() -> Counts:
    """How often the user took it, with a half-life of 28 days."""
    return Counts("recent_counts", Weights(half_life_days=28))
