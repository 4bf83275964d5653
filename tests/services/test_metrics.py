"""What a state node says of itself, after a known log, while it is behind, and while its store hangs."""

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from prometheus_client.parser import text_string_to_metric_families

from protos.interaction_pb2 import Interaction
from services.grpc_server import GrpcServer
from services.http_server import HttpServer
from services.local_kafka import RunningKafka
from services.metrics.exposition import Metrics
from services.metrics.rollouts import RolloutCollector
from services.metrics.serving import RequestCollector
from services.metrics.state_node import INGEST_COUNTERS, StateNodeCollector
from services.metrics.workers import CompressionCollector
from services.request_stats import RequestStats
from services.watch_endpoints import watch_endpoints
from state.arrivals import Applied
from state.backfill_batch import Taken
from state.bundle_rollout import (
    WalkState,
    mark_some,
    set_rollout_state,
    start_rollout,
    stop_rollout,
)
from state.key_value_store import MemoryStore
from state.partition_stores import PartitionStores
from state.user_store import UserStore
from stream.ingest import PollHistograms
from stream.owed_summaries import Backlog
from stream.phases import Phase
from stream.progress import Progress
from stream.topics import TopicsConfig, partition_of
from stream.watchdog import LivenessConfig, Verdict, Watchdog
from tests.services.nodes import FakeOwner
from tests.services.test_http_server import get
from tests.state.builders import SMALL, START_MS, arrive, make_rows
from tests.stream.nodes import Node, event, produce, running, until

Samples = dict[tuple[str, ...], float]
"""Values by name and the values of the labels, in the labels' order."""


def parse(text: str) -> Samples:
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


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


def total(samples: Samples, name: str) -> float | None:
    values = [value for key, value in samples.items() if key[0] == f"gemstream_{name}"]
    return sum(values) if values else None


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


def test_what_is_not_known_is_left_out_not_zero() -> None:
    text = expose(idle_node())
    samples = parse(text)
    for name in ("partition_lag_records", "partition_lag_seconds", "partition_end_offset"):
        assert f"# TYPE gemstream_{name} gauge" in text
        assert total(samples, name) is None
    assert total(samples, "partition_phase") == 1
    for name in ("broker_reachable", "dirty_oldest_seconds", "checkpoint_age_seconds"):
        assert total(samples, name) in (None, 0)
    assert total(samples, "dirty_users") is None


def idle_node() -> StateNodeCollector:
    progress = Progress()
    progress.assigned([4])
    stores = PartitionStores(lambda _: MemoryStore(), SMALL)
    stores.open(4)
    return StateNodeCollector(
        counters={},
        polls=PollHistograms(),
        phases=lambda: {4: Phase.OPENING},
        progress=progress,
        verdict=lambda: Verdict(True, "alive"),
        stores=stores,
        backlog=lambda: None,
        jobs={},
    )


def busy_node() -> StateNodeCollector:
    """Everything is known of it."""
    node = idle_node()
    node.progress.opened(4, 0)
    node.progress.heard({4: 10}, node.progress.now_s())
    node.progress.applied({4: 9}, {4: START_MS})
    return replace(
        node,
        backlog=lambda: Backlog(users=3, resting=0, oldest_s=1.0),
        checkpoint_created_at_ms=lambda _: START_MS,
        checkpoint_failures=lambda _: 1,
    )


def expose(*collectors: Any) -> str:
    body, content_type = Metrics(*collectors).expose("")
    assert content_type.startswith("text/plain")
    return body.decode()


def test_every_count_of_a_poll_is_exposed() -> None:
    ours = {field.name for field in fields(Applied)} | {"dead_letters", "future", "quarantined"}
    assert ours == set(INGEST_COUNTERS)


def test_what_came_of_backfills_is_exposed() -> None:
    backfills = Taken(users=2, interactions=30, repetitions=4)
    samples = parse(expose(replace(idle_node(), backfills=backfills)))
    assert total(samples, "backfill_users_total") == 2
    assert total(samples, "backfill_interactions_total") == 30
    assert total(samples, "backfill_repetitions_total") == 4


def test_a_hole_is_counted() -> None:
    collector = idle_node()
    collector.stores.get(4).record_hole(120, START_MS)
    samples = parse(expose(collector))
    assert samples["gemstream_holes_total", "4"] == 1
    assert samples["gemstream_hole_offsets_total", "4"] == 120


async def test_requests_are_counted_by_method_and_status(monkeypatch: pytest.MonkeyPatch) -> None:
    from services.clients import StateClient

    servers: list[GrpcServer] = []
    start = GrpcServer.start

    async def remembered(server: GrpcServer) -> str:
        servers.append(server)
        return await start(server)

    monkeypatch.setattr(GrpcServer, "start", remembered)
    owner = FakeOwner()
    owner.add("ann", 3)
    async with owner.serving() as address, StateClient(address, 5.0) as users:
        assert await users.read_user("ann", "v1") is not None
        assert await users.read_user("nobody", "v1") is None
    samples = parse(expose(RequestCollector(servers[0].requests)))
    method = "/gemstream.v1.StateService/GetUserState"
    assert samples["gemstream_grpc_requests_total", "OK", method] == 1
    assert samples["gemstream_grpc_requests_total", "NOT_FOUND", method] == 1
    assert samples["gemstream_grpc_request_seconds_count", method] == 2


def test_compression_counts() -> None:
    collector = CompressionCollector({"stored": 3, "failed": 1}, lambda: 2)
    samples = parse(expose(collector, RequestCollector(RequestStats())))
    assert samples["gemstream_compression_summaries_total",] == 3
    assert samples["gemstream_compression_failed_jobs_total",] == 1
    assert samples["gemstream_compression_jobs_in_hand",] == 2


def rolling_stores() -> PartitionStores:
    """Two partitions of two users each; of each one is marked."""
    stores = PartitionStores(lambda _: MemoryStore(), SMALL)
    for partition in (0, 1):
        store = stores.open(partition)
        for number in (0, 1):
            rows = make_rows(list(range(20)))
            store.apply(arrive(rows, f"user-{number}", first_offset=20 * number))
        store.change_bundles(lambda live: start_rollout(live, "v2", 5.0, START_MS))
        store.change_bundles(lambda live: mark_some(live, 1, 1).batch)
    return stores


def test_a_rollout_tells_who_is_left_and_whether_it_is_paused() -> None:
    assert "gemstream_rollout_remaining_users{" not in expose(RolloutCollector(idle_node().stores))
    stores = rolling_stores()

    def exposed() -> tuple[float, float, float, float]:
        samples = parse(expose(RolloutCollector(stores)))
        return (
            samples["gemstream_rollout_remaining_users", "to_walk", "v2"],
            samples["gemstream_rollout_remaining_users", "owed", "v2"],
            samples["gemstream_rollout_users_per_second", "v2"],
            samples["gemstream_rollout_paused", "v2"],
        )

    assert exposed() == (2, 2, 5, 0)
    first = stores.get(0)
    first.change_bundles(lambda live: set_rollout_state(live, "v2", WalkState.PAUSED))
    assert exposed() == (2, 2, 5, 1)
    first.change_bundles(lambda live: set_rollout_state(live, "v2", WalkState.RUNNING))
    for partition in (0, 1):
        stores.get(partition).change_bundles(lambda live: mark_some(live, 9, 9).batch)
    assert exposed() == (0, 4, 5, 0)
    first.change_bundles(lambda live: stop_rollout(live, "v2"))
    assert exposed() == (0, 2, 5, 0)
