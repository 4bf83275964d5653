"""Candidates of a cut with what the history and the item's public record say of each."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.quality.targets import places_of
from bench.quality.task import Task
from model.training.histories import Index
from state.item_statistics import DAY_MS, HALF_LIVES_DAYS, PERIODS_MS

NUM_POPULAR = 60
NUM_KEPT = 120
"""Of each cut. What else a long history holds is never a target, and there is much of it: trees learn it instead."""
_POPULAR_DAYS = 28
FEATURES = (
    *(f"count_{days}_days" for days in HALF_LIVES_DAYS),
    "count",
    "share_of_baskets",
    "baskets_since_last",
    "days_since_last",
    "mean_interval_days",
    "since_last_over_interval",
    "share_who_came_back",
    "popularity_4_weeks",
    "history_length",
    "baskets",
    *(f"fits_{period_ms // 3_600_000}_hours" for period_ms in PERIODS_MS),
    "days_away",
)
_Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Candidates:
    """Of some cuts, in their order."""

    cuts: Index
    row: Index
    """Per candidate, the place of its cut; ascending."""
    item: Index
    """Per candidate, the place of its item in the item table."""
    features: _Floats
    """[candidates, FEATURES]; nan: not known."""


class CandidateTable:
    """The most promising of a history's items and of the most popular ones. Items' public record ends at `known_until_ms`."""

    def __init__(self, task: Task, known_until_ms: int) -> None:
        """Raises nothing: an empty record gives zeros."""
        histories = task.histories
        self._task, self._num_items = task, len(task.items.item_ids)
        self._places, self._known = places_of(task, histories.rows["item_id"])
        self._times = histories.rows["event_time_ms"]
        starts = histories.basket_end - histories.basket_size
        self._basket = np.unique(starts, return_inverse=True)[1].astype(np.int64)
        pairs = self._basket * self._num_items + self._places
        self._first_in_basket = np.zeros(len(pairs), bool)
        self._first_in_basket[np.unique(pairs, return_index=True)[1]] = True
        self._first_in_basket &= self._known
        before = self._known & (self._times < known_until_ms)
        recent = before & (self._times >= known_until_ms - _POPULAR_DAYS * DAY_MS)
        counts = np.bincount(self._places[recent], minlength=self._num_items)
        self._popularity = counts / max(counts.sum(), 1)
        self._came_back = self._share_who_came_back(before & self._first_in_basket)
        order = np.argsort(-counts, kind="stable")
        self._popular = order[: NUM_POPULAR if task.repeats else 10 * NUM_POPULAR]

    def _share_who_came_back(self, counted: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        """Per item, of the users who had it, the share who had it in a second basket; nan where nobody had it."""
        keys = self._task.histories.users[counted] * self._num_items + self._places[counted]
        pairs, baskets = np.unique(keys, return_counts=True)
        had = np.bincount(pairs % self._num_items, minlength=self._num_items)
        again = np.bincount(pairs % self._num_items, baskets > 1, self._num_items)
        return np.where(had, again / had.clip(1), np.nan)

    def at(self, cuts: Index) -> Candidates:
        """Candidates for the basket at each cut."""
        starts = self._task.histories.user_start[cuts]
        lengths = cuts - starts
        row = np.repeat(np.arange(len(cuts)), lengths)
        positions = np.arange(len(row)) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
        known = self._known[positions]
        row, positions = row[known], positions[known]
        own = row * self._num_items + self._places[positions]
        popular = (np.arange(len(cuts))[:, None] * self._num_items + np.sort(self._popular)).ravel()
        keys = np.union1d(own, popular) if self._task.repeats else np.setdiff1d(popular, own)
        features = np.zeros((len(keys), len(FEATURES)), np.float32)
        if self._task.repeats:
            self._describe_own(features, np.searchsorted(keys, own), positions, cuts[row])
        row, item = keys // self._num_items, keys % self._num_items
        self._describe_rest(features, row, item, cuts)
        kept = _promising(row, features)
        return Candidates(cuts, row[kept], item[kept], features[kept])

    def _describe_own(self, features: _Floats, pair: Index, positions: Index, cuts: Index) -> None:
        """Counts and times. `pair`: per row of the histories, its candidate; `cuts`: its cut."""
        num_pairs = len(features)
        times, now = self._times[positions], self._times[cuts]
        age_days = (now - times) / DAY_MS
        for column, half_life in enumerate(HALF_LIVES_DAYS):
            features[:, column] = np.bincount(pair, np.exp2(-age_days / half_life), num_pairs)
        column = len(HALF_LIVES_DAYS)
        features[:, column] = np.bincount(pair, minlength=num_pairs)
        for place, period_ms in enumerate(PERIODS_MS, FEATURES.index("fits_24_hours")):
            cosines = np.cos(2 * np.pi * (now - times) / period_ms)
            features[:, place] = np.bincount(pair, cosines, num_pairs) / (features[:, column] + 1)
        first = self._first_in_basket[positions]
        baskets = np.bincount(pair[first], minlength=num_pairs)
        last, oldest = np.full(num_pairs, np.nan), np.full(num_pairs, np.nan)
        since = np.full(num_pairs, np.nan)
        # Positions ascend within a pair, so the last assignment is the newest.
        last[pair] = age_days
        since[pair] = self._basket[cuts] - self._basket[positions]
        oldest[pair[::-1]] = age_days[::-1]
        interval = np.where(baskets > 1, (oldest - last) / (baskets - 1).clip(1), np.nan)
        features[:, column + 1] = baskets
        features[:, column + 2], features[:, column + 3] = since, last
        features[:, column + 4] = interval
        features[:, column + 5] = last / np.maximum(interval, 1 / 24)

    def _describe_rest(self, features: _Floats, row: Index, item: Index, cuts: Index) -> None:
        """What all candidates of a cut share, and items' public record."""
        histories, column = self._task.histories, len(HALF_LIVES_DAYS) + 1
        starts = histories.user_start[cuts]
        baskets = self._basket[cuts] - self._basket[starts]
        features[:, column] /= baskets.clip(1)[row]
        features[:, column + 5] = self._came_back[item]
        features[:, column + 6] = self._popularity[item]
        features[:, column + 7] = (cuts - starts)[row]
        features[:, column + 8] = baskets[row]
        last = np.where(cuts > starts, self._times[cuts - 1], self._times[cuts])
        features[:, FEATURES.index("days_away")] = ((self._times[cuts] - last) / DAY_MS)[row]


def _promising(row: Index, features: _Floats) -> Index:
    """Places of the NUM_KEPT candidates of each cut that plain counts put first, in order."""
    fading, count, popularity = (
        features[:, FEATURES.index(name)]
        for name in ("count_56_days", "count", "popularity_4_weeks")
    )
    order = np.lexsort((-(fading + 0.1 * count + 100 * popularity), row))
    starts = np.searchsorted(row, row)
    return np.sort(order[np.arange(len(row)) - starts < NUM_KEPT])
