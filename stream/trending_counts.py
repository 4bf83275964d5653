"""What is taken now: events of one partition by window, item and tag, their decay, and the heaviest of them. Pure.

Windows are of event time, so that a history that is sent late does not trend; decay goes by the clock of the caller.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import compress
from typing import Self

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from protos.interaction_pb2 import INTERACTION_KIND_DISLIKE
from protos.trending_pb2 import PartitionTrending, WindowCounts
from state.arrivals import Arrivals
from state.errors import ConfigError
from stream.counted_users import CountedUsers
from stream.errors import StreamError

MAX_PAIRS_PER_WINDOW = 50_000
"""The lightest pairs of a window beyond it are forgotten: a value must fit into a record of 1 MB."""

MAX_PUBLISHED = 40_000
"""Pairs of a published record, likewise."""

MAX_WINDOWS = 720
"""That a partition keeps, in memory and in the changelog."""

MAX_KEEP_S = 2_592_000
"""Thirty days; the changelog is kept for a day more."""

_Ids = npt.NDArray[np.uint64]
_Tags = npt.NDArray[np.uint32]
_Counts = npt.NDArray[np.int64]
_Weights = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class TrendingConfig:
    """What is counted, how fast it is forgotten, and how much of it is told."""

    group: str = "gemstream-trending"
    window_s: int = 60
    """Width of a window of event time."""
    keep_s: float = 10_800.0
    """Older windows are dropped; nor does a partition trend that has not been heard of for so long."""
    half_life_s: float = 1_800.0
    publish_interval_s: float = 2.0
    max_items: int = 200
    """Of a partition, over all tags."""
    max_items_per_tag: int = 50
    max_tags: int = 200
    """Heaviest tags of a partition that get items of their own."""
    min_weight: float = 3.0
    """What weighs less, over all partitions and decayed to now, does not trend. One user weighs less than 3."""
    remembered_counts: int = 524_288
    """Triples of user, item and half-life that a partition remembers in 8 bytes each, so that they count once."""

    def __post_init__(self) -> None:
        """Raise ConfigError for values out of range."""
        if not self.group:
            raise ConfigError("group is empty: give the consumer group a name")
        for name in ("window_s", "half_life_s", "publish_interval_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0")
        longest_s = min(MAX_WINDOWS * self.window_s, MAX_KEEP_S)
        if not self.window_s <= self.keep_s <= longest_s:
            raise ConfigError(
                f"keep_s is {self.keep_s}; it must be at least window_s ({self.window_s}) and at most {longest_s}: "
                f"{MAX_WINDOWS} windows, and thirty days"
            )
        for name in ("max_items", "max_items_per_tag", "max_tags", "min_weight"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 0")
        self._check_sizes()

    def _check_sizes(self) -> None:
        if not 8 <= self.remembered_counts <= 1 << 28 or self.remembered_counts.bit_count() != 1:
            raise ConfigError(
                f"remembered_counts is {self.remembered_counts}; it must be a power of two from 8 to 268435456"
            )
        most = self.max_items + self.max_items_per_tag * self.max_tags
        if most > MAX_PUBLISHED:
            raise ConfigError(
                f"max_items + max_items_per_tag * max_tags is {most}; a record holds at most {MAX_PUBLISHED} items"
            )


@dataclass(frozen=True)
class Pairs:
    """Weights of pairs of item and tag; columns of one length, each pair once, by item and tag."""

    item_ids: _Ids
    tags: _Tags
    weights: _Weights

    @classmethod
    def of(cls, item_ids: _Ids, tags: _Tags, weights: _Weights) -> Self:
        """Sum the weights of equal pairs."""
        order = np.lexsort((tags, item_ids))
        item_ids, tags, weights = item_ids[order], tags[order], weights[order]
        if not len(order):
            return cls(item_ids, tags, weights)
        new = (item_ids[1:] != item_ids[:-1]) | (tags[1:] != tags[:-1])
        starts = np.flatnonzero(np.concatenate([[True], new]))
        return cls(item_ids[starts], tags[starts], np.add.reduceat(weights, starts))

    @classmethod
    def sum(cls, parts: Iterable[tuple["Pairs", float]]) -> Self:
        """The sum of several, each times a factor."""
        parts = list(parts)
        if not parts:
            return cls(np.zeros(0, np.uint64), np.zeros(0, np.uint32), np.zeros(0))
        return cls.of(
            np.concatenate([pairs.item_ids for pairs, _ in parts]),
            np.concatenate([pairs.tags for pairs, _ in parts]),
            np.concatenate([pairs.weights * factor for pairs, factor in parts]),
        )

    def take(self, indices: npt.NDArray[np.int64]) -> "Pairs":
        """Some of them."""
        return Pairs(self.item_ids[indices], self.tags[indices], self.weights[indices])

    def heaviest(self, config: TrendingConfig) -> "Pairs":
        """The heaviest over all and those of each tag; heaviest first, ties by item."""
        order = np.lexsort((self.tags, self.item_ids, -self.weights))
        tags, tag_of, sizes = np.unique(self.tags[order], return_inverse=True, return_counts=True)
        weight_of_tag = np.bincount(tag_of, self.weights[order], len(tags))
        own_list = np.zeros(len(tags), np.bool_)
        own_list[np.argsort(-weight_of_tag, kind="stable")[: config.max_tags]] = True
        by_tag = np.argsort(tag_of, kind="stable")
        rank_in_tag = np.empty(len(order), np.int64)
        rank_in_tag[by_tag] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        chosen = own_list[tag_of] & (rank_in_tag < config.max_items_per_tag)
        chosen[: config.max_items] = True
        return self.take(order[chosen])


@dataclass(frozen=True)
class Window:
    """What was counted of one window."""

    pairs: Pairs
    next_offset: int
    """Events before it are counted."""

    def encode(self) -> bytes:
        """A WindowCounts message."""
        return WindowCounts(
            next_offset=self.next_offset,
            item_ids=self.pairs.item_ids.tolist(),
            tags=self.pairs.tags.tolist(),
            counts=self.pairs.weights.astype(np.int64).tolist(),
        ).SerializeToString()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of encode. Raises StreamError."""
        try:
            message = WindowCounts.FromString(data)
        except DecodeError as error:
            raise StreamError(f"a window of trending counts cannot be read: {error}") from error
        columns = message.item_ids, message.tags, message.counts
        if len({len(column) for column in columns}) != 1:
            raise StreamError("a window of trending counts has columns of different lengths")
        pairs = Pairs(
            np.array(message.item_ids, np.uint64),
            np.array(message.tags, np.uint32),
            np.array(message.counts, np.float64),
        )
        return cls(pairs, message.next_offset)


EMPTY = Window(Pairs.sum([]), 0)


@dataclass(frozen=True)
class _Closed:
    """The sum of windows that hardly change any more."""

    windows: tuple[tuple[int, int], ...]
    """Start and next offset of each."""
    as_of_ms: int
    pairs: Pairs


@dataclass
class PartitionCounts:
    """The windows of one partition, by the start of each in ms."""

    config: TrendingConfig
    windows: dict[int, Window] = field(default_factory=dict)
    _closed: "_Closed | None" = None
    _counted_users: CountedUsers = field(init=False)
    """Of this process: after a restart a user may count once more."""

    def __post_init__(self) -> None:
        """Nobody has counted yet."""
        self._counted_users = CountedUsers(self.config.remembered_counts)

    def add(self, arrivals: Arrivals, now_ms: int) -> set[int]:
        """Count a batch, but nothing twice; gives the windows that changed.

        A user counts once for an item in a half-life of event time. Dislikes and what is too old do not count.
        """
        rows, offsets = arrivals.rows, arrivals.offsets
        next_offset, width_ms = arrivals.position.next_offset, _ms(self.config.window_s)
        starts = rows["event_time_ms"] // width_ms * width_ms
        counted = (rows["kinds"] & (1 << INTERACTION_KIND_DISLIKE) == 0) & (
            starts >= self._oldest_ms(now_ms)
        )
        counted[counted] = self._counted_users.first(
            list(compress(arrivals.user_keys, counted.tolist())),
            rows["item_id"][counted],
            rows["event_time_ms"][counted] // self._once_in_ms(),
        )
        changed = set()
        for start_ms in np.unique(starts[counted]).tolist():
            window = self.windows.get(start_ms, EMPTY)
            new = rows[counted & (starts == start_ms) & (offsets >= window.next_offset)]
            if not len(new):
                continue
            added = Pairs.of(new["item_id"], new["tag"], np.ones(len(new)))
            pairs = _bounded(Pairs.sum([(window.pairs, 1.0), (added, 1.0)]))
            self.windows[start_ms] = Window(pairs, next_offset)
            changed.add(start_ms)
        return changed

    def expire(self, now_ms: int) -> list[int]:
        """Drop windows that are too old, and tell which."""
        gone = [start for start in self.windows if start < self._oldest_ms(now_ms)]
        for start in gone:
            del self.windows[start]
        return gone

    def trending(self, partition: int, now_ms: int) -> PartitionTrending:
        """The heaviest pairs, decayed to now."""
        half_life_ms = _ms(self.config.half_life_s)
        pairs = self._weights(now_ms, half_life_ms)
        heaviest = pairs.heaviest(self.config)
        return PartitionTrending(
            partition=partition,
            as_of_ms=now_ms,
            half_life_ms=half_life_ms,
            total_weight=float(pairs.weights.sum()),
            item_ids=heaviest.item_ids.tolist(),
            tags=heaviest.tags.tolist(),
            weights=heaviest.weights.tolist(),
        )

    def _weights(self, now_ms: int, half_life_ms: int) -> Pairs:
        """All pairs, decayed to now. What no longer changes is summed once: all windows but the newest."""
        kept = sorted(start for start in self.windows if start >= self._oldest_ms(now_ms))
        if not kept:
            return EMPTY.pairs
        *closed, newest = kept
        summed = tuple((start, self.windows[start].next_offset) for start in closed)
        if self._closed is None or self._closed.windows != summed:
            parts = [
                (self.windows[start].pairs, decay(newest - start, half_life_ms)) for start in closed
            ]
            self._closed = _Closed(summed, newest, Pairs.sum(parts))
        return Pairs.sum(
            [
                (self._closed.pairs, decay(now_ms - self._closed.as_of_ms, half_life_ms)),
                (self.windows[newest].pairs, decay(now_ms - newest, half_life_ms)),
            ]
        )

    def _once_in_ms(self) -> int:
        """Of event time; aligned periods so long, each of which a user may count in once for an item."""
        longest_s = max(float(self.config.window_s), self.config.half_life_s)
        return _ms(min(longest_s, self.config.keep_s))

    def _oldest_ms(self, now_ms: int) -> int:
        return now_ms - _ms(self.config.keep_s)


def decay(age_ms: float, half_life_ms: float) -> float:
    """What is left of a weight of 1."""
    return float(2.0 ** (-age_ms / half_life_ms))


def _bounded(pairs: Pairs) -> Pairs:
    if len(pairs.weights) <= MAX_PAIRS_PER_WINDOW:
        return pairs
    heaviest = np.argsort(-pairs.weights, kind="stable")[:MAX_PAIRS_PER_WINDOW]
    return pairs.take(np.sort(heaviest))


def _ms(seconds: float) -> int:
    return round(seconds * 1_000)
