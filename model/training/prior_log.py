"""How popular the catalogue's items were at moments of an event log, as the trie's shares: what a network corrects.

Shapes: T moments, N items, B cuts.
"""

import numpy as np
import torch
from torch import Tensor

from model.catalogue import Catalogue
from model.features import hash_buckets
from model.network import Network
from model.prior import Floats, log_shares_in_bucket, of_sids, prior_counts
from model.training.histories import Histories, Index
from model.training.popularity_log import counted_events
from model.trie import Trie

_MAX_MOMENTS, _MAX_COUNTS = 256, 1 << 25
"""Moments times items: half a gigabyte with the shares, 1.5 while they are added up."""


class PriorLog:
    """Evenly spread moments, as many as fit; counts are decayed, and of what came before the moment."""

    def __init__(
        self, histories: Histories, catalogue: Catalogue, trie: Trie, half_life_s: float
    ) -> None:
        """Adds the log up, once; `trie` is the catalogue's."""
        self._histories, self._catalogue = histories, catalogue
        item_ids, times_ms = counted_events(histories, round(half_life_s * 1_000))
        items = catalogue.find(item_ids)
        known = items >= 0
        num_moments = int(np.clip(_MAX_COUNTS // len(catalogue), 2, _MAX_MOMENTS))
        items, times_ms = items[known], times_ms[known]
        self._moments_ms = _moments(times_ms, num_moments)
        counts_TN = _counts_at(self._moments_ms, items, times_ms, len(catalogue), half_life_s)
        self._at_end_N = counts_TN[-1].copy()
        counts_TN = prior_counts(catalogue, counts_TN, counts_TN.sum(1))
        self.trie = trie.weighed(of_sids(catalogue, counts_TN))
        self._counts_TN = counts_TN.astype(np.float32)

    def moments_of(self, times_ms_B: Index) -> Tensor:
        """[B]: the last moment not after each time."""
        return torch.from_numpy(self._moment_of(times_ms_B))

    def moment_before(self, time_ms: int) -> int:
        """The time up to which a context of `time_ms` is told of; the first one's, before it."""
        return int(self._moments_ms[self._moment_of(np.array([time_ms]))[0]])

    def log_shares_at(self, cut: int) -> Floats:
        """[N]: of the catalogue's items at the moment of a cut."""
        time_ms = self._histories.rows["event_time_ms"][cut : cut + 1]
        counts_N = self._counts_TN[self._moment_of(time_ms)[0]].astype(np.float64)
        return log_shares_in_bucket(self._catalogue, counts_N)

    def remember_end(self, network: Network) -> None:
        """What counts where nothing is known of a later moment, unless a stage of the repeats says it, of all items."""
        rows = hash_buckets(self._catalogue.item_ids, network.config.features.item_buckets)
        counts_N = torch.from_numpy(self._at_end_N).float()
        network.repeats.popularity.zero_().index_add_(0, torch.from_numpy(rows), counts_N)

    def _moment_of(self, times_ms: Index) -> Index:
        return (np.searchsorted(self._moments_ms, times_ms, side="right") - 1).clip(min=0)


def _moments(times_ms: Index, most: int) -> Index:
    """From the first event on, before which nothing is known."""
    if not len(times_ms):
        return np.zeros(1, np.int64)
    return np.unique(np.linspace(times_ms.min(), times_ms.max(), most).astype(np.int64))


def _counts_at(
    moments_ms: Index, items: Index, times_ms: Index, num_items: int, half_life_s: float
) -> Floats:
    """[T, N]: each moment's are those of the one before, decayed, and what came since."""
    order = np.argsort(times_ms, kind="stable")
    items, times_ms, half_life_ms = items[order], times_ms[order], half_life_s * 1_000
    ends = np.searchsorted(times_ms, moments_ms, side="left")
    counts_TN = np.zeros((len(moments_ms), num_items))
    for moment in range(1, len(moments_ms)):
        since = slice(ends[moment - 1], ends[moment])
        decay = np.exp2((moments_ms[moment - 1] - moments_ms[moment]) / half_life_ms)
        weights = np.exp2((times_ms[since] - moments_ms[moment]) / half_life_ms)
        new = np.bincount(items[since], weights, num_items)
        counts_TN[moment] = counts_TN[moment - 1] * decay + new
    return counts_TN
