"""From events to recommendations through real processes, one of them killed half-way."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from aiokafka import AIOKafkaConsumer

from model.bundle import load_bundle
from model.compression import Compressor
from protos import recommender_pb2 as wire
from protos.interaction_pb2 import Interaction
from services.local_kafka import RunningKafka, start_kafka
from state.interaction import Rows
from state.item_statistics_codec import decode_statistics
from state.key_value_store import MemoryStore
from state.partition_stores import PartitionStores
from state.rocks_config import RocksConfig
from state.rocks_store import RocksMemory, RocksStore
from state.user_store import UserStore
from stream.decode import Decoder, DecoderConfig
from stream.topics import TopicsConfig, ensure_topics, partition_of
from tests.end_to_end.processes import Deployment, to_messages, wait_for
from tests.model.worlds import SMALL, make_event_log
from tests.state.builders import stored_histories

pytestmark = [pytest.mark.broker, pytest.mark.slow]

USERS = [f"user-{index}" for index in range(24)]


@pytest.fixture
def deployed(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path, bundle: Path
) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path, kafka.bootstrap, topics, bundle, chooses_engine=True)
    yield deployment
    if deployment.process is not None:
        deployment.process.kill()
        print(deployment.log.read_text())


async def test_events_become_recommendations_and_a_kill_changes_nothing(
    deployed: Deployment, bundle: Path
) -> None:
    events = to_messages(make_event_log())  # 64 events of each of 24 users
    half = len(events) // 2
    deployed.start("up")
    await deployed.produce(events[:half])
    wait_for("half of the events in the state", lambda: deployed.applied() == half)
    wait_for("a summary at the boundary", lambda: summary_is_complete(deployed, "user-3"))
    boundary = described_boundary(deployed, "user-3")
    assert boundary == 16

    reply = deployed.recommend("user-3", k=5)
    assert len(reply.items) == 5
    assert reply.source == wire.SOURCE_PERSONAL
    assert reply.state_version == 32
    assert reply.bundle_version == load_bundle(bundle).version
    assert (reply.segments.recent, reply.segments.mid_term, reply.segments.lifecycle) == (8, 8, 16)
    excluded = reply.items[0].item.item_id
    again = deployed.recommend("user-3", k=5, exclude_item_ids=[excluded])
    assert excluded not in [entry.item.item_id for entry in again.items]
    assert deployed.recommend("a stranger").source == wire.SOURCE_POPULAR

    await deployed.produce(events[half : half + 300])
    deployed.kill_role("state-node")
    await deployed.produce(events[half + 300 :])
    wait_for("all events in the state", lambda: deployed.applied() == len(events))
    for user in USERS:
        wait_for(f"the summary of {user}", lambda: summary_is_complete(deployed, user))  # noqa: B023
    assert described_boundary(deployed, "user-3") == 48
    wait_for(
        "the way to the new process",  # until then an older copy answers, and says so
        lambda: deployed.recommend("user-3").state_version == 64,
    )
    deployed.stop()

    assert_same_as_uninterrupted(deployed, await read_log(deployed, len(events)))
    assert_summaries_equal_one_shot(deployed, bundle)


async def test_random_kills_lose_and_double_nothing(deployed: Deployment) -> None:
    events = to_messages(make_event_log())
    random = np.random.default_rng()
    await deployed.produce(events)
    for _ in range(6):
        deployed.start("run", "state-node")
        stop_after = deployed.applied() + int(random.integers(0, 250))
        wait_for(
            "some progress",
            lambda: deployed.applied() >= min(stop_after, len(events)),  # noqa: B023
        )
        deployed.kill_role("state-node")
    deployed.start("run", "state-node")
    wait_for("all events in the state", lambda: deployed.applied() == len(events))
    deployed.stop()
    assert_same_as_uninterrupted(deployed, await read_log(deployed, len(events)))


async def test_a_deleted_user_stays_deleted(deployed: Deployment) -> None:
    events = to_messages(make_event_log())
    deployed.start("run", "state-node")
    await deployed.produce(events)
    wait_for("all events in the state", lambda: deployed.applied() == len(events))
    command = [sys.executable, "-m", "services.cli", "user", "delete", "user-3", "--yes"]
    await asyncio.to_thread(
        subprocess.run, [*command, "--config", str(deployed.config)], check=True, timeout=60
    )
    assert deployed.describe_user("user-3") is None
    deployed.kill_role("state-node")

    deployed.start("run", "state-node")
    now_ms = time.time_ns() // 1_000_000
    newer = Interaction(event_id="new", user_id="user-3", item_id=5, event_time_ms=now_ms + 60_000)
    await deployed.produce([*(event for event in events if event.user_id == "user-3"), newer])
    wait_for("the newer event", lambda: deployed.describe_user("user-3") is not None)
    user = deployed.describe_user("user-3")
    assert user is not None
    assert (user.meta.length, user.meta.epoch) == (1, 1)
    deployed.stop()


async def test_a_forgotten_item_leaves_history_and_summary(
    deployed: Deployment, bundle: Path
) -> None:
    log = make_event_log()
    events = to_messages(log)
    of_user = log.rows[log.user_index == log.user_ids.index("user-3")]
    item = int(of_user["item_id"][0])
    deployed.start("up")
    await deployed.produce(events)
    wait_for("all events in the state", lambda: deployed.applied() == len(events))
    wait_for("a summary at the boundary", lambda: summary_is_complete(deployed, "user-3"))
    command = [sys.executable, "-m", "services.cli", "user", "forget", "user-3", str(item), "--yes"]
    await asyncio.to_thread(
        subprocess.run, [*command, "--config", str(deployed.config)], check=True, timeout=60
    )
    wait_for("another summary", lambda: summary_is_complete(deployed, "user-3"))
    deployed.kill_role("state-node")
    await deployed.produce([event for event in events if event.user_id == "user-3"])
    expected = of_user[of_user["item_id"] != item]
    count = len(events) + 1 + len(of_user)
    wait_for("the same events once more", lambda: deployed.applied() == count)
    wait_for("the summary", lambda: summary_is_complete(deployed, "user-3"))
    deployed.stop()

    assert_same_as_uninterrupted(deployed, await read_log(deployed, count))
    assert_as_if_only(expected, "user-3", deployed, bundle)


def assert_as_if_only(rows: Rows, user: str, deployed: Deployment, bundle: Path) -> None:
    """What is stored of a user is what these interactions alone give, the summary included."""
    compressor, stores = Compressor(load_bundle(bundle)), stores_of(deployed)
    store = stores.open(partition_of(user, deployed.topics.num_partitions))
    stored = store.read_user(user, compressor.bundle_version)
    assert stored is not None
    assert stored.summary is not None
    boundary = SMALL.history.lifecycle_boundary(len(rows))
    assert (stored.meta.length, stored.meta.lifecycle_boundary) == (len(rows), boundary)
    newer = stored.decode(user).rows["item_id"]
    assert newer.tolist() == rows["item_id"][boundary:].tolist()
    chunks = [rows[start : start + 4] for start in range(0, boundary, 4)]
    expected = compressor.roll(None, chunks, boundary, 0)
    np.testing.assert_allclose(stored.summary.tokens, expected.tokens, rtol=0, atol=1e-6)
    stores.close_all()


async def test_a_broker_that_goes_away_is_waited_for(tmp_path: Path, bundle: Path) -> None:
    events = to_messages(make_event_log())[:600]
    topics = TopicsConfig(num_partitions=2)
    broker = await asyncio.to_thread(start_kafka, tmp_path / "kafka")
    try:
        await ensure_topics(broker.bootstrap, topics)
        deployed = Deployment(tmp_path, broker.bootstrap, topics, bundle)
        deployed.start("run", "state-node")
        await deployed.produce(events[:300])
        wait_for("the first half", lambda: deployed.applied() == 300)
        broker.kill()
        assert deployed.describe_user("user-3") is not None, "states are served without a broker"
        await asyncio.to_thread(broker.restart)
        await deployed.produce(events[300:])
        wait_for("the second half", lambda: deployed.applied() == 600)
        deployed.stop()
        assert_same_as_uninterrupted(deployed, await read_log(deployed, 600))
    finally:
        broker.stop()


def summary_is_complete(deployed: Deployment, user: str) -> bool:
    description = deployed.describe_user(user)
    return description is not None and any(
        summary.boundary == description.meta.lifecycle_boundary > 0
        for summary in description.summaries
    )


def described_boundary(deployed: Deployment, user: str) -> int:
    description = deployed.describe_user(user)
    assert description is not None
    return description.meta.lifecycle_boundary


async def read_log(deployed: Deployment, count: int) -> list[object]:
    """What really is in the topic."""
    consumer = AIOKafkaConsumer(
        deployed.topics.interactions,
        bootstrap_servers=deployed.bootstrap,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        return [await consumer.getone() for _ in range(count)]
    finally:
        await consumer.stop()


def stores_of(deployed: Deployment) -> PartitionStores:
    """The state node's databases, to be opened once it is gone."""
    directory, memory = deployed.directory / "data" / "state", RocksMemory(RocksConfig())
    return PartitionStores(
        lambda partition: RocksStore(directory / f"{partition:05d}", memory), SMALL.history
    )


def assert_same_as_uninterrupted(deployed: Deployment, records: list[object]) -> None:
    """Every byte of every user, summaries aside, and every offset."""
    decoder = Decoder(DecoderConfig(), deployed.topics.num_partitions)
    stores = stores_of(deployed)
    for partition in range(deployed.topics.num_partitions):
        own = [record for record in records if record.partition == partition]  # type: ignore[attr-defined]
        expected = UserStore(MemoryStore(), SMALL.history, partition)
        if own:
            expected.apply(decoder.decode(partition, own).arrivals)  # type: ignore[arg-type]
        actual = stores.open(partition)
        assert stored_histories(actual.database) == stored_histories(expected.database)
        assert actual.position() == expected.position()
    stores.close_all()


def assert_summaries_equal_one_shot(deployed: Deployment, bundle: Path) -> None:
    """Built over many boundary moves and a kill, a summary is what one pass over the segment gives."""
    compressor = Compressor(load_bundle(bundle))
    log = make_event_log()
    stores = stores_of(deployed)
    for index, user in enumerate(USERS):
        store = stores.open(partition_of(user, deployed.topics.num_partitions))
        stored = store.read_user(user, compressor.bundle_version)
        assert stored is not None
        assert stored.summary is not None
        segment = log.rows[log.user_index == index][: stored.meta.lifecycle_boundary]
        expected = compressor.roll(None, [segment], len(segment), 0)
        assert stored.summary.count == len(segment)
        np.testing.assert_allclose(stored.summary.tokens, expected.tokens, atol=1e-5)
        kept, whole = (
            decode_statistics(summary.item_statistics).items
            for summary in (stored.summary, expected)
        )
        assert kept["item_id"].tolist() == whole["item_id"].tolist()
        assert kept["visits"].tolist() == whole["visits"].tolist()
        np.testing.assert_allclose(kept["decayed"], whole["decayed"])
    stores.close_all()


def test_messages_follow_the_contract() -> None:
    assert all(isinstance(message, Interaction) for message in to_messages(make_event_log())[:3])
