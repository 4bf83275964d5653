"""How popular items were at any moment of an event log: decayed counts, as what trends is counted in serving.

Shapes: B cuts, N candidates, E events that count.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.features import hash_buckets
from model.query import ItemIds
from model.training.histories import Histories, Index
from state.interaction import are_dislikes


class PopularityLog:
    """Counts by row of the item table, over all users; each user counts once for an item in an aligned half-life."""

    def __init__(self, histories: Histories, item_buckets: int, half_life_s: float) -> None:
        """Sorts the log and adds it up, once."""
        self._half_life_ms = half_life_s * 1_000
        item_ids, times = counted_events(histories, round(self._half_life_ms))
        rows = hash_buckets(item_ids, item_buckets)
        by_row = np.lexsort((times, rows))
        rows, times = rows[by_row], times[by_row]
        self._first_ms = int(times.min()) if len(times) else 0
        times -= self._first_ms
        self._span_ms = int(times.max(initial=0)) + 2
        self._times, self._keys = times, rows * self._span_ms + times
        self._rows, self._counts = rows, _running_counts(rows, times, self._half_life_ms)

    def at(self, rows_BN: Tensor, times_ms_B: Index) -> Tensor:
        """[B, N] float32: what came before each cut's time, decayed to it."""
        rows, times = rows_BN.numpy(), times_ms_B[:, None] - self._first_ms
        if not len(self._keys):
            return torch.zeros(rows.shape)
        last = _sorted_search(self._keys, rows * self._span_ms + times.clip(0, self._span_ms - 1))
        known = (last > 0) & (self._rows[last - 1] == rows)
        age_ms = times - self._times[last - 1]
        counts = self._counts[last - 1] * np.exp2(-age_ms / self._half_life_ms)
        return torch.from_numpy(np.where(known, counts, 0.0).astype(np.float32))


def _sorted_search(keys: Index, wanted: Index) -> Index:
    """np.searchsorted, in the order of what is wanted: a third of the time, as neighbours lie in the same cache lines."""
    order = np.argsort(wanted, axis=None)
    places = np.empty(wanted.size, np.int64)
    places[order] = np.searchsorted(keys, wanted.ravel()[order])
    return places.reshape(wanted.shape)


def counted_events(histories: Histories, period_ms: int) -> tuple[ItemIds, Index]:
    """Item and time of what counts: no dislikes, and of each user the first of an item in every period."""
    counts = ~are_dislikes(histories.rows)
    ids, times = histories.rows["item_id"][counts], histories.rows["event_time_ms"][counts]
    order = np.lexsort((ids, histories.users[counts]))  # times ascend in histories, and stay so
    ids, times = ids[order], times[order]
    keys = histories.users[counts][order], ids, times // period_ms
    repeated = np.append(False, np.all([key[1:] == key[:-1] for key in keys], 0))[: len(order)]
    return ids[~repeated], times[~repeated]


def _running_counts(rows: Index, times: Index, half_life_ms: float) -> npt.NDArray[np.float64]:
    """[E]: the row's events up to each, decayed to it. Every turn doubles how many are summed."""
    counts, reach = np.ones(len(rows)), 1
    while len(earlier := np.flatnonzero(rows[reach:] == rows[:-reach])):
        later = earlier + reach
        counts[later] += counts[earlier] * np.exp2((times[earlier] - times[later]) / half_life_ms)
        reach *= 2
    return counts
