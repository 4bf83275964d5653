"""What a state node says of itself, after a known log, while it is behind, and while its store hangs."""

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from protos.interaction_pb2 import Interaction
from services.http_server import HttpServer
from services.local_kafka import RunningKafka
from services.metrics.exposition import Metrics
from services.metrics.state_node import INGEST_COUNTERS, StateNodeCollector
from services.watch_endpoints import watch_endpoints
from state.arrivals import Applied
from state.user_store import UserStore
from stream.owed_summaries import Backlog
from stream.phases import Phase
from stream.topics import TopicsConfig, partition_of
from stream.watchdog import LivenessConfig, Watchdog
from tests.services.exposed_samples import Samples, parse, total
from tests.services.test_http_server import get
from tests.state.builders import START_MS
from tests.stream.nodes import Node, event, produce, running, until


class Watched:
    """A node with its endpoints."""

    def __init__(self, node: Node, stall_after_s: float = 60.0) -> None:
        consumer = node.consumer
        config = LivenessConfig(stall_after_s=stall_after_s)
        self.watchdog = Watchdog(consumer.progress, consumer.ask_end_offsets, config)
        collector = StateNodeCollector(
            counters=node.ingest.counters,
            polls=node.ingest.polls,
            phases=consumer.phases.all,
            progress=consumer.progress,
            verdict=self.watchdog.verdict,
            stores=node.stores,
            backlog=lambda: Backlog(users=7, resting=1, oldest_s=2.5),
            jobs={"sent": 9, "resent": 2, "poisoned": 1},
            checkpoint_created_at_ms=lambda n: None if n else round(time.time() * 1_000) - 90_000,
            checkpoint_failures=lambda n: n,
        )
        self.endpoints: HttpServer = watch_endpoints(
            "127.0.0.1:0",
            "x.metrics_listen",
            Metrics(collector),
            self.watchdog.verdict,
            consumer.phases.all_ready,
        )

    async def get(self, path: str) -> tuple[int, str]:
        return await asyncio.to_thread(get, self.endpoints.address, path)

    async def samples(self) -> Samples:
        status, text = await self.get("/metrics")
        assert status == 200
        return parse(text)

    async def until(self, **wanted: float) -> Samples:
        """Scrape until the sums over all partitions are as wanted; a sum of nothing is nothing."""
        async with asyncio.timeout(30):
            while True:
                samples = await self.samples()
                if all(total(samples, name) == value for name, value in wanted.items()):
                    return samples
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def watched(node: Node, stall_after_s: float = 60.0) -> AsyncIterator[Watched]:
    watch = Watched(node, stall_after_s)
    async with running(node):
        task = asyncio.create_task(watch.watchdog.run())
        with watch.endpoints:
            yield watch
        task.cancel()


@pytest.fixture
def node(kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path) -> Node:
    return Node(kafka.bootstrap, topics, tmp_path, f"state-{uuid.uuid4().hex[:8]}")


def interaction(user: str, number: int, event_time_ms: int) -> tuple[bytes, bytes]:
    message = Interaction(
        event_id=f"{user}-{number}", user_id=user, item_id=number, event_time_ms=event_time_ms
    )
    return user.encode(), message.SerializeToString()


@pytest.mark.broker
async def test_a_known_log_gives_known_numbers(
    kafka: RunningKafka, topics: TopicsConfig, node: Node
) -> None:
    tomorrow_ms = round(time.time() * 1_000) + 86_400_000
    records: list[tuple[bytes | None, bytes | None]] = [
        *(event("ann", number) for number in range(16)),
        event("ann", 15),  # a duplicate
        interaction("ann", 99, START_MS - 1),  # late
        interaction("cid", 1, tomorrow_ms),  # of the future
        (b"ann", b"rubbish"),
        (None, b"rubbish"),
        (b"bob", None),
        event("bob", 1),  # refused
    ]
    await produce(kafka.bootstrap, topics.interactions, records)
    async with watched(node) as watch:
        samples = await watch.until(
            partition_lag_records=0, ingest_deletions_total=1, ingest_interactions_total=18
        )
        counts = {name: samples["gemstream_ingest_" + name + "_total",] for name in INGEST_COUNTERS}
        for name in ("folds", "boundary_moves", "sealed_chunks"):
            assert counts.pop(name) >= 1
        assert counts == {
            "interactions": 18,
            "duplicates": 1,
            "late": 1,
            "future": 1,
            "refused": 1,
            "replayed": 0,
            "deletions": 1,
            "forgotten": 0,
            "dead_letters": 2,
            "quarantined": 0,
            "evicted_chunks": 0,
        }
        assert (await watch.get("/healthz")) == (200, "alive: 3 partitions\n")
        assert (await watch.get("/readyz")) == (200, "ready\n")
        assert_polls(samples, len(records))
        assert_partitions(samples, len(records))
        assert_store(samples)


def assert_polls(samples: Samples, num_records: int) -> None:
    assert samples["gemstream_ingest_poll_records_sum",] == num_records
    polls = samples["gemstream_ingest_poll_records_count",]
    assert polls >= 1
    for stage in ("write", "flush", "commit"):
        assert samples[f"gemstream_ingest_{stage}_seconds_count",] == polls
        assert samples[f"gemstream_ingest_{stage}_seconds_bucket", "+Inf"] == polls
        assert 0 < samples[f"gemstream_ingest_{stage}_seconds_sum",] < 30


def assert_partitions(samples: Samples, num_records: int) -> None:
    assert total(samples, "partition_next_offset") == num_records
    assert total(samples, "partition_end_offset") == num_records
    for partition in "012":
        assert samples["gemstream_partition_lag_seconds", partition] == 0
        phases = [samples["gemstream_partition_phase", partition, phase] for phase in Phase]
        assert dict(zip(Phase, phases, strict=True)) == {
            Phase.OPENING: 0,
            Phase.CATCHING_UP: 0,
            Phase.READY: 1,
        }
    assert samples["gemstream_checkpoint_age_seconds", "0"] == pytest.approx(90, abs=20)
    assert ("gemstream_checkpoint_age_seconds", "1") not in samples
    assert samples["gemstream_checkpoint_failures_total", "2"] == 2


def assert_store(samples: Samples) -> None:
    assert samples["gemstream_ingest_stalled",] == 0
    assert samples["gemstream_broker_reachable",] == 1
    assert samples["gemstream_dirty_users",] == 7
    assert samples["gemstream_dirty_resting_users",] == 1
    assert samples["gemstream_dirty_oldest_seconds",] == 2.5
    assert samples["gemstream_compression_jobs_sent_total",] == 9
    assert samples["gemstream_compression_jobs_resent_total",] == 2
    assert samples["gemstream_compression_poisoned_users_total",] == 1
    assert samples["gemstream_store_block_cache_bytes",] >= 0
    for name in ("store_bytes", "store_memtable_bytes", "store_keys"):
        assert (total(samples, name) or 0) > 0
    assert total(samples, "store_pending_compaction_bytes") == 0
    assert total(samples, "holes_total") == total(samples, "hole_offsets_total") == 0


@pytest.mark.broker
async def test_a_store_that_hangs_shows_in_lag_and_health_and_so_does_its_recovery(
    kafka: RunningKafka, topics: TopicsConfig, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, apply = threading.Event(), UserStore.apply
    gate.set()

    def gated(store: UserStore, *arguments: Any) -> Applied:
        assert gate.wait(60)
        return apply(store, *arguments)

    monkeypatch.setattr(UserStore, "apply", gated)
    ann = partition_of("ann", topics.num_partitions)
    await produce(kafka.bootstrap, topics.interactions, [event("ann", 0)])
    async with watched(node, stall_after_s=2.0) as watch:
        try:
            await until(lambda: node.applied() == 1)
            await watch.until(partition_lag_records=0)
            gate.clear()
            await produce(
                kafka.bootstrap, topics.interactions, [event("ann", n) for n in range(1, 6)]
            )
            samples = await watch.until(ingest_stalled=1)
            assert samples["gemstream_partition_lag_records", str(ann)] == 5
            assert 2 < samples["gemstream_partition_lag_seconds", str(ann)] < 30
            status, reason = await watch.get("/healthz")
            assert status == 503
            assert reason.startswith(f"stalled: partition {ann} has stood at offset 1 of 6 for "), (
                reason
            )
        finally:
            gate.set()
        samples = await watch.until(ingest_stalled=0, partition_lag_records=0)
        assert total(samples, "partition_lag_seconds") == 0
        assert samples["gemstream_ingest_interactions_total",] == 6
        assert (await watch.get("/healthz"))[0] == 200


@pytest.mark.broker
async def test_transactions_are_neither_lag_nor_a_stall(
    kafka: RunningKafka, topics: TopicsConfig, node: Node
) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=kafka.bootstrap, transactional_id=topics.interactions
    )
    await producer.start()
    async with watched(node, stall_after_s=2.0) as watch:
        async with producer.transaction():
            key, value = event("ann", 0)
            await producer.send_and_wait(topics.interactions, value, key=key)
        samples = await watch.until(partition_lag_records=0, ingest_interactions_total=1)
        samples = await watch.until(partition_next_offset=2, partition_end_offset=2)
        async with producer.transaction():
            await producer.send_and_wait(topics.interactions, value, key=key)
            watching = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() < watching + 3:
                samples = await watch.samples()
                assert total(samples, "partition_lag_records") == 0
                assert samples["gemstream_ingest_stalled",] == 0
        await watch.until(ingest_duplicates_total=1, partition_lag_records=0)
    await producer.stop()
