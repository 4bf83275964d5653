"""The app that counts what trends, on a real broker: batches, restarts, deliveries that come twice, damage."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from protos.interaction_pb2 import Interaction
from protos.trending_pb2 import PartitionTrending
from services.local_kafka import RunningKafka
from state.errors import ConfigError
from stream.decode import DecoderConfig
from stream.errors import StreamError, TopicMismatch
from stream.topic_reader import follow_topic, read_topic
from stream.topics import TopicsConfig, ensure_topics
from stream.trending_app import StallDetector, TrendingApp, TrendingAppConfig
from stream.trending_counts import TrendingConfig, Window
from tests.stream.trending import interaction

pytestmark = pytest.mark.broker
WITHIN_S = 40.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def counting(topics: TopicsConfig) -> TrendingConfig:
    return TrendingConfig(group=f"group-{topics.trending}", publish_interval_s=0.1, half_life_s=1e9)


@pytest.fixture
def config(kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path) -> TrendingAppConfig:
    return TrendingAppConfig(
        bootstrap=kafka.bootstrap,
        data_dir=tmp_path,
        interactions=topics.interactions,
        counts=topics.trending_counts,
        trending=topics.trending,
    )


@asynccontextmanager
async def running(
    config: TrendingAppConfig, counting: TrendingConfig
) -> AsyncIterator[TrendingApp]:
    app = TrendingApp(config, counting, DecoderConfig())
    await app.start()
    try:
        yield app
    finally:
        await app.stop()
        await app.wait()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await asyncio.sleep(0.05)  # between two looks


async def produce(config: TrendingAppConfig, events: Sequence[Interaction | bytes]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=config.bootstrap)
    await producer.start()
    for event in events:
        if isinstance(event, bytes):
            await producer.send(config.interactions, event, key=b"rubbish")
        else:
            await producer.send(
                config.interactions, event.SerializeToString(), key=event.user_id.encode()
            )
    await producer.stop()


async def until_counts(config: TrendingAppConfig, expected: dict[tuple[int, int], int]) -> None:
    """Follow the topic until all partitions together say what is expected; weights are nearly counts here."""
    newest: dict[int, PartitionTrending] = {}
    async with asyncio.timeout(WITHIN_S):
        async for record in follow_topic(config.bootstrap, config.trending):
            message = PartitionTrending.FromString(record.value)
            newest[message.partition] = message
            found: dict[tuple[int, int], float] = {}
            for each in newest.values():
                for item, tag, weight in zip(each.item_ids, each.tags, each.weights, strict=True):
                    found[item, tag] = found.get((item, tag), 0.0) + weight
            if {pair: round(weight) for pair, weight in found.items()} == expected:
                return


async def counted(config: TrendingAppConfig) -> dict[tuple[int, int], int]:
    """What the table's changelog holds, exactly."""
    newest = {}
    async for record in read_topic(config.bootstrap, config.counts):
        newest[record.partition, record.key] = record.value
    totals: dict[tuple[int, int], int] = {}
    for value in filter(None, newest.values()):
        pairs = Window.decode(value).pairs
        for item, tag, count in zip(pairs.item_ids, pairs.tags, pairs.weights, strict=True):
            totals[int(item), int(tag)] = totals.get((int(item), int(tag)), 0) + int(count)
    return totals


async def test_counts_over_all_partitions_and_a_restart(
    config: TrendingAppConfig, counting: TrendingConfig
) -> None:
    users = [f"user-{n}" for n in range(30)]
    first = [interaction(user, 7, now_ms(), tag=3) for user in users]
    first += [interaction(user, 8, now_ms(), tag=4) for user in users[:20]]
    first += [interaction(user, 9, now_ms(), disliked=True) for user in users]
    old = [interaction(user, 10, now_ms() - 86_400_000) for user in users]
    async with running(config, counting) as app:
        await produce(config, [*first, b"\xff rubbish", *old])
        await until_counts(config, {(7, 3): 30, (8, 4): 20})
        assert app.is_running
        assert app.counters["unreadable"] == 1
        await until(lambda: set(app.lag_records().values()) == {0})
    await produce(config, [interaction(f"other-{user}", 8, now_ms(), tag=4) for user in users])
    async with running(config, counting):
        await until_counts(config, {(7, 3): 30, (8, 4): 50})
    assert await counted(config) == {(7, 3): 30, (8, 4): 50}


async def test_what_is_delivered_again_counts_once(
    config: TrendingAppConfig, counting: TrendingConfig
) -> None:
    """Another group begins at the beginning, with the table that the first one left."""
    users = [f"user-{n}" for n in range(30)]
    await produce(config, [interaction(user, 7, now_ms()) for user in users])
    async with running(config, counting):
        await until_counts(config, {(7, 0): 30})
    another = TrendingConfig(group=f"{counting.group}-2", publish_interval_s=0.1, half_life_s=1e9)
    await produce(config, [interaction(user, 8, now_ms()) for user in users])
    async with running(config, another) as app:
        await until_counts(config, {(7, 0): 30, (8, 0): 30})
        assert app.counters["events"] == 60
    assert await counted(config) == {(7, 0): 30, (8, 0): 30}


async def test_windows_that_are_too_old_leave_the_table(
    config: TrendingAppConfig, counting: TrendingConfig
) -> None:
    users = [f"user-{n}" for n in range(30)]
    clock = [now_ms()]
    app = TrendingApp(config, counting, DecoderConfig(), lambda: clock[0])
    await app.start()
    try:
        await produce(config, [interaction(user, 7, clock[0] - 120_000) for user in users])
        await until_counts(config, {(7, 0): 30})
        clock[0] += round(counting.keep_s * 1_000) - 60_000
        await produce(config, [interaction(user, 8, now_ms()) for user in users])
        await until_counts(config, {(8, 0): 30})
    finally:
        await app.stop()
        await app.wait()
    assert await counted(config) == {(8, 0): 30}


async def test_members_share_the_partitions(
    config: TrendingAppConfig, counting: TrendingConfig, tmp_path: Path
) -> None:
    users = [f"user-{n}" for n in range(30)]
    async with running(config, counting):
        await produce(config, [interaction(user, 7, now_ms()) for user in users])
        await until_counts(config, {(7, 0): 30})
        async with running(config, counting) as second:
            await until(lambda: second.is_running)
            await produce(config, [interaction(f"other-{user}", 7, now_ms()) for user in users])
            await until_counts(config, {(7, 0): 60})
        await produce(config, [interaction(f"third-{user}", 7, now_ms()) for user in users])
        await until_counts(config, {(7, 0): 90})
    assert await counted(config) == {(7, 0): 90}


async def test_a_marker_of_a_transaction_is_no_lag(
    config: TrendingAppConfig, counting: TrendingConfig
) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=config.bootstrap, transactional_id=config.trending
    )
    async with running(config, counting) as app:
        await producer.start()
        async with producer.transaction():
            for user in (f"user-{n}" for n in range(30)):
                event = interaction(user, 7, now_ms()).SerializeToString()
                await producer.send(config.interactions, event, key=user.encode())
        await producer.stop()
        await until_counts(config, {(7, 0): 30})
        await until(lambda: app.lag_records() == {0: 0, 1: 0, 2: 0})


async def test_topics_that_do_not_fit_are_named(
    config: TrendingAppConfig, kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path
) -> None:
    wrong = TrendingAppConfig(
        bootstrap=kafka.bootstrap, data_dir=tmp_path, interactions="absent", counts="c"
    )
    with pytest.raises(StreamError, match="'absent' does not exist"):
        await TrendingApp(wrong, TrendingConfig(), DecoderConfig()).start()
    narrow = TopicsConfig(
        interactions=f"narrow-{topics.interactions}",
        trending=f"narrow-{topics.trending}",
        trending_counts=topics.trending_counts,
        num_partitions=2,
    )
    await ensure_topics(kafka.bootstrap, narrow)
    other = TrendingAppConfig(
        bootstrap=kafka.bootstrap,
        data_dir=tmp_path,
        interactions=narrow.interactions,
        counts=narrow.trending_counts,
        trending=narrow.trending,
    )
    with pytest.raises(TopicMismatch, match="has 3 partitions"):
        await TrendingApp(other, TrendingConfig(), DecoderConfig()).start()


def test_partitions_that_stand_still_are_found() -> None:
    detector = StallDetector(60.0)
    counted = {0: 5, 1: 5}
    assert detector.look({0: 5, 1: 9, 2: 0}, counted, 0.0) == set()
    assert detector.look({0: 5, 1: 9, 2: 0}, counted, 49.0) == set()
    assert detector.look({0: 5, 1: 9, 2: 3}, counted, 50.0) == set()
    assert detector.look({0: 5, 1: 9, 2: 3}, counted, 70.0) == {1}
    assert detector.look({0: 5, 1: 99, 2: 3}, counted | {1: 6}, 80.0) == set()
    assert detector.look({0: 5, 1: 99, 2: 3}, counted | {1: 6}, 130.0) == {2}
    assert detector.ends == {0: 5, 1: 99, 2: 3}
    assert detector.look({0: 5}, counted, 500.0) == set()


@pytest.mark.parametrize(
    "wrong",
    [
        {"group": ""},
        {"window_s": 0},
        {"half_life_s": 0.0},
        {"keep_s": 30.0},
        {"keep_s": 43_260.0},
        {"window_s": 86_400, "keep_s": 31 * 86_400.0},
        {"max_items": -1},
        {"max_tags": 900},
        {"remembered_counts": 1_000},
    ],
)
def test_settings_out_of_range(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        TrendingConfig(**wrong)  # type: ignore[arg-type]
