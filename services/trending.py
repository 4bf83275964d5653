"""What trends now: the newest word of every partition, summed and decayed to now."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from protos.trending_pb2 import PartitionTrending
from stream.errors import StreamError
from stream.topic_reader import follow_topic
from stream.topics import TopicsConfig, ensure_topics
from stream.trending_counts import Pairs, TrendingConfig, decay

log = logging.getLogger(__name__)

_FOLLOW_AGAIN_AFTER_S = 1.0
_MERGED_FOR_MS = 1_000


@dataclass(frozen=True)
class TrendingItems:
    """Heaviest first."""

    item_ids: npt.NDArray[np.uint64]
    weights: npt.NDArray[np.float64]
    """Events, decayed to now."""
    total_weight: float
    """Of all events that were counted, those of lighter items included."""

    @property
    def log_shares(self) -> npt.NDArray[np.float64]:
        """Log of each item's share of all events."""
        return np.log(self.weights / self.total_weight)


def merge(
    records: Iterable[PartitionTrending],
    config: TrendingConfig,
    now_ms: int,
    tag: int | None = None,
) -> TrendingItems:
    """The sum of one record of each partition, decayed to `now_ms`; of one tag, or of all."""
    heard = [each for each in records if now_ms - each.as_of_ms <= config.keep_s * 1_000]
    factors = [decay(now_ms - each.as_of_ms, each.half_life_ms) for each in heard]
    pairs = Pairs.sum(zip(map(_pairs, heard), factors, strict=True))
    if tag is not None:
        pairs = pairs.take(np.flatnonzero(pairs.tags == tag))
    items = Pairs.of(pairs.item_ids, np.zeros_like(pairs.tags), pairs.weights)
    heavy = items.take(np.flatnonzero(items.weights >= config.min_weight))
    order = np.lexsort((heavy.item_ids, -heavy.weights))
    total = sum(each.total_weight * factor for each, factor in zip(heard, factors, strict=True))
    return TrendingItems(heavy.item_ids[order], heavy.weights[order], total)


class Trending:
    """Hears what the partitions' owners publish. Without a word, nothing trends."""

    def __init__(
        self,
        config: TrendingConfig,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`now_ms` is the clock that weights are decayed by."""
        self._config = config
        self._now_ms = now_ms
        self._newest: dict[int, PartitionTrending] = {}
        self._merged: TrendingItems | None = None
        self._merged_at_ms = 0

    def hear(self, record: PartitionTrending) -> None:
        """The newest word of a partition."""
        self._newest[record.partition] = record

    def items(self) -> TrendingItems:
        """What trends over all partitions; a second old at most."""
        now_ms = self._now_ms()
        if self._merged is None or not 0 <= now_ms - self._merged_at_ms < _MERGED_FOR_MS:
            self._merged = merge(list(self._newest.values()), self._config, now_ms)
            self._merged_at_ms = now_ms
        return self._merged

    def popularity(self, half_life_ms: int) -> TrendingItems:
        """All weights that are known, light ones too, from partitions whose weights fade so fast. Made anew; from any thread."""
        fitting = [
            each for each in list(self._newest.values()) if each.half_life_ms == half_life_ms
        ]
        return merge(fitting, replace(self._config, min_weight=0.0), self._now_ms())

    def age_s(self) -> float | None:
        """Since the partition spoke that has been silent for longest; None before any did."""
        if not self._newest:
            return None
        oldest_ms = min(record.as_of_ms for record in self._newest.values())
        return max(0, self._now_ms() - oldest_ms) / 1_000

    async def run(self, bootstrap: str, topics: TopicsConfig) -> None:
        """Follow the topic until cancelled. While the broker is away the last word stands, and fades."""
        while True:
            try:
                await ensure_topics(bootstrap, topics)
                async for record in follow_topic(bootstrap, topics.trending):
                    self._hear_bytes(record.value)
            except StreamError as error:
                log.warning("cannot follow what trends, will try again: %s", error)
            await asyncio.sleep(_FOLLOW_AGAIN_AFTER_S)

    def _hear_bytes(self, value: bytes | None) -> None:
        try:
            record = PartitionTrending.FromString(value or b"")
        except DecodeError:
            log.warning("skipped a record that is no PartitionTrending")
            return
        columns = record.item_ids, record.tags, record.weights
        if record.half_life_ms > 0 and len({len(column) for column in columns}) == 1:
            self.hear(record)


def _pairs(record: PartitionTrending) -> Pairs:
    return Pairs(
        np.array(record.item_ids, np.uint64),
        np.array(record.tags, np.uint32),
        np.array(record.weights, np.float64),
    )
