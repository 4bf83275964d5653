"""Cuts to tensors: a context by the same segment rule as the fold, and several targets from what follows it.

Shapes: B contexts, N interactions of a segment, T targets, D levels.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from model.catalogue import Catalogue
from model.code_recency import FirstCodes
from model.features import ItemTensors, to_tensors
from model.network import NetworkConfig
from model.next_item import ItemRows
from model.query import Mask
from model.repeat_features import RepeatCandidates, repeat_candidates
from model.training.gains import item_gains
from model.training.histories import Histories, Index
from model.training.popularity_log import PopularityLog
from model.training.prior_log import PriorLog
from model.transitions import Followers, Gains
from model.trie import Trie
from state.item_statistics import (
    ItemStatistics,
    bounded,
    empty_statistics,
    merge_statistics,
    statistics_of,
)
from state.segments import HistoryConfig

_ALL = slice(None)


@dataclass(frozen=True)
class Batch:
    """Contexts and their targets."""

    items: ItemTensors
    """[B, N]: lifecycle, mid-term and recent interactions side by side; the last right-aligned, the others left-aligned."""
    mask: Tensor
    """[B, N]: true where an interaction is real."""
    lengths: list[int]
    """Columns of lifecycle, mid-term and recent."""
    repeats: RepeatCandidates
    repeat_weights: Tensor
    """[B, N]: `item_gains` of the next basket's distinct targets in the catalogue for them, else 0."""
    target_sids: Tensor
    """[B, T]: SID numbers; 0 where the weight is 0."""
    target_weights: Tensor
    """[B, T]: one over the number of targets in the target's basket; 0 = no target."""
    next_items: Tensor
    """[B, R]: the catalogue item behind each recent interaction, where it is learned from; else -1."""
    catalogue_rows: ItemRows | None
    """None where no items are scored beside their codes: a batch is moved to the device, and they are the whole catalogue."""
    code_counts: Tensor | None = None
    """[B, R, K]: `FirstCodes.log_counts` of the first codes in mid-term and recent segments, where the network reads them."""
    moments: Tensor | None = None
    """[B]: of the prior's trie, at which the contexts ask; None where it has one for all."""


class BatchBuilder:
    """Cuts batches out of histories."""

    def __init__(
        self,
        histories: Histories,
        catalogue: Catalogue,
        network: NetworkConfig,
        history: HistoryConfig,
        lifecycle_sample: int,
    ) -> None:
        """Converts all interactions to tensors once."""
        self.histories = histories
        self.history = history
        self.lifecycle_sample = lifecycle_sample
        self.items = to_tensors(histories.rows, network.features)
        self._network = network
        self.catalogue = catalogue
        self._found = catalogue.find(histories.rows["item_id"])
        self._taken = np.where(histories.are_targets, self._found, -1)
        self._catalogue_rows = (
            ItemRows.of(catalogue, network.features) if network.next_item.enabled else None
        )
        self.popularity: PopularityLog | None = None
        """As of each cut, from `follow_popularity`; None: as of the training's end."""
        self.followers: Followers | None = None
        """Of the catalogue, where items gain by what they follow; in evaluation alone."""
        self.prior: PriorLog | None = None
        """As of each cut, from `follow_prior`; None: as over all of the training."""
        self.target_sids = np.where(self._taken >= 0, catalogue.bucket_of_item[self._taken], -1)
        """Per interaction, its SID number; -1 where it is no target."""
        self._first = FirstCodes(catalogue)
        self.first_codes = self._first.at(self._found)
        """Per interaction, or -1."""

    def follow_popularity(self) -> PopularityLog:
        """From now on items are as popular as all users' interactions before each cut made them."""
        features, repeats = self._network.features, self._network.repeats
        self.popularity = PopularityLog(
            self.histories, features.item_buckets, repeats.popularity_half_life_s
        )
        return self.popularity

    def follow_prior(self, trie: Trie) -> PriorLog:
        """From now on contexts name the moments of the prior's trie, which has the SIDs of `trie`."""
        half_life_s = self._network.repeats.popularity_half_life_s
        self.prior = PriorLog(self.histories, self.catalogue, trie, half_life_s)
        return self.prior

    def build(
        self,
        cuts: Index,
        targets: int,
        window: int,
        random: np.random.Generator | None,
        shard: slice = _ALL,
        *,
        recent_alone: bool = False,
    ) -> Batch:
        """Contexts that end at `cuts`. Targets and lifecycle interactions are drawn by `random`.

        None takes the next basket alone, as it is, and evenly spread lifecycle interactions.

        `shard` takes some of the contexts, with the targets that they have in the whole batch. `recent_alone` leaves out
        what is older, and repeats.
        """
        sids, weights = self._targets(cuts, targets, window, random)
        start = self.histories.user_start[cuts]
        cut_at = [self._segments(int(n)) for n in cuts - start]
        first, boundary, recent_start = (start + column for column in np.array(cut_at).T)
        if recent_alone:
            first = boundary = recent_start
        lifecycle = _spread(first, boundary, self.lifecycle_sample, random)
        sids, weights, cuts = sids[shard], weights[shard], cuts[shard]
        parts = [
            lifecycle[shard],
            _left_aligned(boundary[shard], recent_start[shard]),
            _right_aligned(recent_start[shard], cuts),
        ]
        index = torch.from_numpy(np.concatenate(parts, 1))
        lengths = [part.shape[1] for part in parts]
        items = self.items[index.clamp(min=0)]
        next_items = self._next_items(parts[2], newest_alone=random is None)
        repeats = self._no_repeats(cuts) if recent_alone else self.repeats(cuts)
        counts = None if recent_alone else self._code_counts(boundary[shard], cuts)
        return Batch(
            items,
            index >= 0,
            lengths,
            *repeats,
            sids,
            weights,
            next_items,
            self._catalogue_rows,
            counts,
            self._moments(cuts),
        )

    def gains(self, cuts: Index) -> Gains | None:
        """What items gain by the newest interactions of the recent segments before `cuts`."""
        if self.followers is None:
            return None
        item_ids, starts = self.histories.rows["item_id"], self.histories.user_start[cuts]
        firsts = np.maximum(starts, cuts - self.history.recent_len)
        return self.followers.gains([item_ids[a:b] for a, b in zip(firsts, cuts, strict=True)])

    def _moments(self, cuts: Index) -> Tensor | None:
        if self.prior is None:
            return None
        return self.prior.moments_of(self.histories.rows["event_time_ms"][cuts])

    def _code_counts(self, boundaries: Index, cuts: Index) -> Tensor | None:
        if not self._network.code_recency:
            return None
        nearer = zip(boundaries.tolist(), cuts.tolist(), strict=True)
        return torch.stack([self._first.log_counts(self.first_codes[a:b]) for a, b in nearer])

    def _next_items(self, recent_BR: Index, *, newest_alone: bool) -> Tensor:
        """What followed the recent interactions at these positions; in evaluation, what follows the newest."""
        config, num_recent = self._network.next_item, recent_BR.shape[1]
        found = np.where(recent_BR >= 0, self._taken[np.maximum(recent_BR, 0) + 1], -1)
        learned = 0 if not config.enabled else 1 if newest_alone else config.positions
        found[:, : max(0, num_recent - learned)] = -1
        return torch.from_numpy(found)

    def repeats(self, cuts: Index) -> tuple[RepeatCandidates, Tensor]:
        """What the whole histories before `cuts` hold, bounded at the lifecycle boundary as in serving; their weights."""
        network, times_ms = self._network, self.histories.rows["event_time_ms"][cuts]
        candidates = repeat_candidates(
            [self._statistics(int(cut)) for cut in cuts],
            self.catalogue,
            network.features,
            network.repeats.max_candidates,
            network.repeats.max_popular_candidates,
            times_ms.tolist(),
        )
        if self.popularity is not None:
            counts = self.popularity.at(candidates.first_rows, times_ms)
            candidates = replace(candidates, popularity=counts)
        return candidates, self._repeat_weights(cuts, candidates)

    def _no_repeats(self, cuts: Index) -> tuple[RepeatCandidates, Tensor]:
        nothing = [empty_statistics()] * len(cuts)
        candidates = repeat_candidates(nothing, self.catalogue, self._network.features, 0)
        return candidates, torch.zeros(candidates.items.shape)

    def seen(self, cut: int) -> Mask:
        """[N]: true for the catalogue's items that the cut's user had before."""
        found = self._found[self.histories.user_start[cut] : cut]
        mask = np.zeros(len(self.catalogue), np.bool_)
        mask[found[found >= 0]] = True
        return mask

    def _statistics(self, cut: int) -> ItemStatistics:
        if not self._network.repeats.enabled:
            return empty_statistics()
        rows, start = self.histories.rows, int(self.histories.user_start[cut])
        boundary = start + self.history.lifecycle_boundary(cut - start)
        lifecycle = statistics_of(rows[start:boundary])
        older = bounded(lifecycle, self._network.repeats.max_items)
        return merge_statistics(older, statistics_of(rows[boundary:cut]))

    def _repeat_weights(self, cuts: Index, repeats: RepeatCandidates) -> Tensor:
        items = repeats.items.numpy()
        weights = np.zeros(items.shape, np.float32)
        for row, cut in enumerate(cuts):
            taken = np.unique(self._taken[cut : self.histories.basket_end[cut]])
            taken = taken[taken >= 0]
            weights[row] = np.isin(items[row], taken) * item_gains(np.array(len(taken)))
        return torch.from_numpy(weights)

    def _segments(self, length: int) -> tuple[int, int, int]:
        history = self.history
        boundary = history.lifecycle_boundary(length)
        first = min(history.first_position(length), boundary)
        return first, boundary, history.recent_start(length)

    def _targets(
        self, cuts: Index, targets: int, window: int, random: np.random.Generator | None
    ) -> tuple[Tensor, Tensor]:
        histories = self.histories
        ends = histories.basket_end[cuts]
        if random is not None:
            ends = np.maximum(ends, np.minimum(cuts + window, histories.train_end[cuts]))
        positions = _left_aligned(cuts, ends)
        sids = np.where(positions >= 0, self.target_sids[positions], -1)
        if random is not None:
            real = sids >= 0
            num_columns = min(targets, max(1, int(real.sum(1).max())))
            chosen = np.argsort(random.random(sids.shape) + ~real, axis=1)[:, :num_columns]
            positions, sids = (np.take_along_axis(a, chosen, 1) for a in (positions, sids))
        weights = np.where(sids >= 0, 1.0 / histories.num_targets[positions].clip(1), 0.0)
        return torch.from_numpy(sids.clip(min=0)), torch.from_numpy(weights.astype(np.float32))


def _right_aligned(starts: Index, ends: Index) -> Index:
    """[B, N] positions; rows shorter than the longest begin with -1."""
    longest = int((ends - starts).max(initial=0))
    positions = ends[:, None] + np.arange(-longest, 0)
    return np.where(positions >= starts[:, None], positions, -1)


def _left_aligned(starts: Index, ends: Index) -> Index:
    longest = int((ends - starts).max(initial=0))
    positions = starts[:, None] + np.arange(longest)
    return np.where(positions < ends[:, None], positions, -1)


def _spread(starts: Index, ends: Index, most: int, random: np.random.Generator | None) -> Index:
    """At most `most` positions per row: the first of as many equal parts of [start, end), or one that `random` draws."""
    counts = ends - starts
    num_columns = min(most, int(counts.max(initial=0)))
    taken = np.minimum(counts, num_columns)[:, None]
    columns = np.arange(num_columns)
    counts, parts = counts[:, None], np.maximum(taken, 1)
    offsets = columns * counts // parts
    if random is not None:
        lengths = (columns + 1) * counts // parts - offsets
        offsets += (random.random(offsets.shape) * lengths).astype(np.int64)
    return np.where(columns < taken, starts[:, None] + offsets, -1)
