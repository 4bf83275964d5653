"""What every collector exposes, by itself."""

from dataclasses import fields, replace
from typing import Any

import pytest

from services.grpc_server import GrpcServer
from services.metrics.exposition import Metrics
from services.metrics.rollouts import RolloutCollector
from services.metrics.serving import RequestCollector
from services.metrics.state_node import INGEST_COUNTERS, StateNodeCollector
from services.metrics.workers import CompressionCollector
from services.request_stats import RequestStats
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
from stream.ingest import PollHistograms
from stream.owed_summaries import Backlog
from stream.phases import Phase
from stream.progress import Progress
from stream.watchdog import Verdict
from tests.services.exposed_samples import parse, total
from tests.services.nodes import FakeOwner
from tests.state.builders import SMALL, START_MS, arrive, make_rows


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


def test_users_who_left_the_quarantine_are_counted_on_while_partitions_come_and_go() -> None:
    database = MemoryStore()
    stores = PartitionStores(lambda _: database, SMALL)
    collector = replace(idle_node(), stores=stores)
    for expected in (0, 2, 4):
        store = stores.open(4)
        samples = parse(expose(collector))
        assert samples["gemstream_released_users_total", "4"] == expected
        assert samples["gemstream_quarantined_users", "4"] == 0
        store.quarantine.add({"ann": "a bit", "bob": "a bit"})
        stores.close(4)


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
