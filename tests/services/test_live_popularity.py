"""What trends, as a network is told of it: what training reads off the log, or nothing."""

import asyncio
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch

from model.features import hash_buckets
from model.training.histories import build_histories
from model.training.popularity_log import PopularityLog
from protos.trending_pb2 import PartitionTrending
from services import live_popularity
from services.live_popularity import LivePopularity
from services.trending import Trending
from state.arrivals import Arrivals, Position
from state.event_log import EventLog
from stream.topics import partition_of
from stream.trending_counts import PartitionCounts, TrendingConfig
from tests.model.worlds import HOUR_MS, START_MS, make_event_log

HALF_LIFE_S = 86_400.0
COUNTING = TrendingConfig(
    window_s=3_600, keep_s=30 * 86_400.0, half_life_s=HALF_LIFE_S, max_items=1_000
)
NUM_PARTITIONS, BUCKETS = 3, 100_003


class Told:
    """In the network's place."""

    def __init__(self) -> None:
        self.counts: dict[int, float] | None = None
        self.total = 0.0

    def __call__(
        self, item_ids: npt.NDArray[np.uint64], counts: npt.NDArray[np.float64], total: float
    ) -> None:
        self.counts = dict(zip(item_ids.tolist(), counts.tolist(), strict=True))
        self.total = total


def published(log: EventLog, now_ms: int) -> list[PartitionTrending]:
    """What the owners of the partitions say when they have counted everything before a moment."""
    partitions = np.array([partition_of(name, NUM_PARTITIONS) for name in log.user_ids])
    records = []
    for partition in range(NUM_PARTITIONS):
        counts = PartitionCounts(COUNTING)
        of_partition = partitions[log.user_index] == partition
        places = np.flatnonzero(of_partition & (log.rows["event_time_ms"] < now_ms))
        keys = [log.user_ids[user].encode() for user in log.user_index[places]]
        end = Position(len(places), 0)
        arrivals = Arrivals(partition, end, keys, np.arange(len(places)), log.rows[places])
        counts.add(arrivals, now_ms)
        records.append(counts.trending(partition, now_ms))
    return records


def heard(records: list[PartitionTrending], now_ms: Callable[[], int]) -> Trending:
    trending = Trending(COUNTING, now_ms)
    for record in records:
        trending.hear(record)
    return trending


def test_what_trends_is_what_training_reads_off_the_log() -> None:
    """Light items, too; and a user counts once for an item in a half-life on both sides."""
    log, told = make_event_log(), Told()
    now_ms = START_MS // HOUR_MS * HOUR_MS + 100 * HOUR_MS
    log.rows["event_time_ms"] -= START_MS % HOUR_MS  # where windows begin
    trending = heard(published(log, now_ms), lambda: now_ms)
    assert LivePopularity(trending, HALF_LIFE_S, told).refresh()
    assert told.counts is not None
    ids = np.array(sorted(told.counts), np.uint64)
    rows = torch.from_numpy(hash_buckets(ids, BUCKETS))[None]
    in_training = PopularityLog(build_histories(log), BUCKETS, HALF_LIFE_S)
    expected = in_training.at(rows, np.array([now_ms]))[0]
    assert [told.counts[item] for item in ids.tolist()] == pytest.approx(expected.tolist())
    assert told.total == pytest.approx(float(expected.sum()))
    assert min(told.counts.values()) < COUNTING.min_weight < max(told.counts.values())
    untold = np.setdiff1d(np.unique(log.rows["item_id"]), ids)
    others = torch.from_numpy(hash_buckets(untold, BUCKETS))[None]
    assert not in_training.at(others, np.array([now_ms])).any()


def test_weights_that_fade_otherwise_are_not_told() -> None:
    log, told = make_event_log(), Told()
    now_ms = START_MS + 100 * HOUR_MS
    trending = heard(published(log, now_ms), lambda: now_ms)
    assert not LivePopularity(trending, 2 * HALF_LIFE_S, told).refresh()
    assert told.counts == {}


def test_what_was_not_heard_of_for_long_is_forgotten() -> None:
    clock, told = [START_MS + 100 * HOUR_MS], Told()
    trending = heard(published(make_event_log(), clock[0]), lambda: clock[0])
    popularity = LivePopularity(trending, HALF_LIFE_S, told)
    assert popularity.refresh()
    clock[0] += 31 * 24 * HOUR_MS
    assert not popularity.refresh()
    assert told.counts == {}


async def test_it_is_told_while_it_runs() -> None:
    now_ms = START_MS + 100 * HOUR_MS
    trending = heard(published(make_event_log(), now_ms), lambda: now_ms)
    first = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def tell(item_ids: npt.NDArray[np.uint64], *_: object) -> None:
        loop.call_soon_threadsafe(first.set_result, len(item_ids))

    running = asyncio.create_task(LivePopularity(trending, HALF_LIFE_S, tell).run())
    assert await asyncio.wait_for(first, 10) > 0
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_failure_is_logged_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live_popularity, "_LOOK_AGAIN_S", 0)
    loop, calls = asyncio.get_running_loop(), list[int]()
    second = loop.create_future()

    def tell(item_ids: npt.NDArray[np.uint64], *_: object) -> None:
        calls.append(len(item_ids))
        if len(calls) == 1:
            raise ValueError("the first call fails")
        if len(calls) == 2:
            loop.call_soon_threadsafe(second.set_result, None)

    running = asyncio.create_task(LivePopularity(heard([], lambda: 0), HALF_LIFE_S, tell).run())
    await asyncio.wait_for(second, 10)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert calls[:2] == [0, 0]
    assert "not refreshed" in caplog.text
