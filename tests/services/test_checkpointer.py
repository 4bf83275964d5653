"""The periodic checkpoints of a node: when they are due, what becomes of failures, and what an operator is told."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from services.checkpointer import Checkpointer
from services.errors import NotFound
from services.rollout import Rollouts
from state.bundle_rollout import WalkState, put_changed_at, read_bundles_changed_at_ms
from state.checkpoint_config import CheckpointsConfig
from state.key_value_store import Batch
from state.partition_stores import PartitionStores
from state.user_store import UserStore
from stream.errors import LeaseExpired
from tests.services.calls import call
from tests.services.nodes import FakeOwner
from tests.state.builders import SMALL
from tests.state.checkpointing import PARTITION, Machine, add, open_rocks


class Node:
    """What a checkpointer sees of a node that owns one partition."""

    def __init__(self, disk: Path, repository: Path, interval_s: float = 3_600.0) -> None:
        self.machine = Machine(disk, str(repository))
        directory = self.machine.directory
        self.stores = PartitionStores(lambda each: open_rocks(directory.path(each)), SMALL)
        self.served = {PARTITION}
        self.checkpointer = Checkpointer(
            self.stores,
            self.machine.writer,
            self.machine.restorer,
            lambda: self.served,
            self.check_served,
            CheckpointsConfig(uri=str(repository), interval_s=interval_s),
        )

    def check_served(self, partition: int) -> None:
        if partition not in self.served:
            raise LeaseExpired(f"partition {partition} is not served by this node now")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[UserStore]:
        store = self.stores.open(PARTITION)
        task = asyncio.create_task(self.checkpointer.run())
        try:
            yield store
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self.stores.close_all()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "repository"
    path.mkdir()
    return path


async def test_checkpoints_follow_the_state(tmp_path: Path, repository: Path) -> None:
    node = Node(tmp_path / "one", repository, interval_s=0.05)
    async with node.running() as store:
        add(store, 10)
        await until(lambda: node.machine.offsets() == [10])
        add(store, 10)
        log = node.checkpointer.log
        await until(
            lambda: PARTITION in log.last and log.last[PARTITION].manifest.next_offset == 20
        )
        last = log.last[PARTITION]
    assert node.machine.offsets() == [20, 10]
    assert last.uploaded_bytes > 0
    assert last.seconds > 0


async def test_a_partition_that_comes_here_keeps_its_interval(
    tmp_path: Path, repository: Path
) -> None:
    first = Node(tmp_path / "one", repository)
    async with first.running() as store:
        add(store, 10)
        await until(lambda: first.machine.offsets() == [10])
    again = Node(tmp_path / "one", repository)
    async with again.running() as store:
        add(store, 10)
        await until(lambda: PARTITION in again.checkpointer.log.last)
        last = again.checkpointer.log.last[PARTITION]
    assert (last.manifest.next_offset, last.is_new) == (10, False)


async def test_a_new_owner_knows_a_rollout_though_no_event_came_since(
    tmp_path: Path, repository: Path
) -> None:
    """It has an older copy of its own, of the same events: a change of rollouts is copied at once, and restored."""
    other = Node(tmp_path / "two", repository)
    first = Node(tmp_path / "one", repository)
    rollouts = Rollouts(first.stores, lambda: first.served, lambda: None, first.checkpointer.hasten)
    async with first.running() as store:
        add(store, 10)
        await until(lambda: first.machine.offsets() == [10])
        other.machine.restorer.before_open(PARTITION)
        await rollouts.start("next", 10.0)
        await until(lambda: first.machine.offsets() == [10, 10])
        other.machine.restorer.before_open(PARTITION)
        taken_over = other.machine.open()
        assert taken_over.bundles.next_version == "next"
        rollouts = Rollouts(other.stores, lambda: {PARTITION}, lambda: None)
        taken_over.close()
        other.stores.open(PARTITION)
        await rollouts.set_state("next", WalkState.PAUSED)
        other.stores.close_all()
        other.machine.restorer.before_open(PARTITION)
        again = other.machine.open()
        assert again.bundles.rollout is not None
        assert again.bundles.rollout.state is WalkState.PAUSED, "what it knows is newer"
        again.close()


async def test_a_change_on_a_slower_clock_is_the_newer_one(
    tmp_path: Path, repository: Path
) -> None:
    node = Node(tmp_path / "one", repository)
    rollouts = Rollouts(node.stores, lambda: node.served, lambda: None)
    store = node.stores.open(PARTITION)
    an_hour_ahead_ms = (time.time_ns() // 1_000_000) + 3_600_000
    batch = Batch()
    put_changed_at(batch, an_hour_ahead_ms)
    store.change_bundles(lambda live: batch)
    await rollouts.start("next", 10.0)
    await rollouts.set_state("next", WalkState.PAUSED)
    assert read_bundles_changed_at_ms(store.database) == an_hour_ahead_ms + 2
    node.stores.close_all()


async def test_a_hastened_partition_waits_for_the_repository_as_others_do(
    tmp_path: Path, repository: Path
) -> None:
    node = Node(tmp_path / "one", repository)
    node.stores.open(PARTITION)
    repository.rename(tmp_path / "away")
    node.checkpointer.hasten(PARTITION)
    for _ in range(3):
        await node.checkpointer._look_up_opened()
    assert node.checkpointer.log.failures[PARTITION] == 1
    node.stores.close_all()
    (tmp_path / "away").rename(repository)


async def test_a_partition_that_went_and_came_back_is_not_hastened_any_more(
    tmp_path: Path, repository: Path
) -> None:
    node = Node(tmp_path / "one", repository)
    async with node.running() as store:
        add(store, 10)
        await until(lambda: node.machine.offsets() == [10])
    add(node.stores.open(PARTITION), 10)
    node.checkpointer.hasten(PARTITION)
    node.stores.close(PARTITION)
    await node.checkpointer._look_up_opened()
    node.stores.open(PARTITION)
    await node.checkpointer._look_up_opened()
    assert not node.checkpointer._is_due(PARTITION), "the newest is young"
    node.stores.close_all()


async def test_failures_are_counted_and_tried_again(
    tmp_path: Path, repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path / "one", repository, interval_s=0.05)
    repository.rename(tmp_path / "away")
    async with node.running() as store:
        add(store, 10)
        await until(lambda: node.checkpointer.log.failures[PARTITION] >= 2)
        assert "make it, mount it" in node.checkpointer.log.last_failure[PARTITION]
        (tmp_path / "away").rename(repository)
        await until(lambda: node.machine.offsets() == [10])
    assert "no checkpoint of partition 3" in caplog.text


async def test_the_newest_usable_one_is_known_before_the_partition_is_served(
    tmp_path: Path, repository: Path
) -> None:
    first = Node(tmp_path / "one", repository)
    async with first.running() as store:
        add(store, 10)
        await until(lambda: first.machine.offsets() == [10])
        add(store, 10)
        newest = first.machine.take(store).manifest
    place = repository / "interactions" / f"{PARTITION:05d}"
    (place / f"{newest.name}.json").write_text("{}")
    again = Node(tmp_path / "one", repository)
    again.served.clear()
    log = again.checkpointer.log
    async with again.running():
        await until(lambda: log.created_at_ms(PARTITION) is not None)
        assert log.last[PARTITION].manifest.next_offset == 10
        again.stores.close(PARTITION)
        await until(lambda: log.created_at_ms(PARTITION) is None)
    assert log.num_failures(PARTITION) == 0


async def test_damage_is_a_failure_that_names_the_file(
    tmp_path: Path, repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path / "one", repository, interval_s=0.05)
    async with node.running() as store:
        add(store, 500)
        await until(lambda: node.machine.offsets() == [500])
        path = max(
            node.machine.directory.path(PARTITION).glob("*.sst"),
            key=lambda each: each.stat().st_size,
        )
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        add(store, 5)
        await until(lambda: node.checkpointer.log.num_failures(PARTITION) >= 2)
    assert node.machine.offsets() == [500]
    assert f"damaged on disk: {path.name}" in caplog.text


async def test_a_partition_that_went_elsewhere_is_not_published(
    tmp_path: Path, repository: Path
) -> None:
    node = Node(tmp_path / "one", repository)
    node.served.clear()
    async with node.running() as store:
        add(store, 10)
        with pytest.raises(NotFound, match="not served"):
            await node.checkpointer.take(PARTITION, prune=False)
        with pytest.raises(LeaseExpired):
            node.machine.take(store, lambda: node.check_served(PARTITION))
    assert node.machine.offsets() == []


async def test_an_operator_is_told(tmp_path: Path, repository: Path) -> None:
    node = Node(tmp_path / "one", repository)
    owner = FakeOwner()
    async with owner.serving() as address:
        off = await asyncio.to_thread(call, "store", "checkpoint", "--state", address)
    assert (off.code, "set `uri` in [checkpoints]" in off.stderr) == (1, True)
    owner = FakeOwner(checkpoints=node.checkpointer)
    async with node.running() as store, owner.serving() as address:
        add(store, 10)
        options = ["--state", address]
        first = await asyncio.to_thread(call, "store", "checkpoint", "--json", *options)
        again = await asyncio.to_thread(call, "store", "checkpoint", *options)
        full = await asyncio.to_thread(call, "store", "checkpoint", "--full", "--json", *options)
        repository.rename(tmp_path / "away")
        add(store, 10)
        failed = await asyncio.to_thread(call, "store", "checkpoint", *options)
    (taken,) = first.document()["checkpoints"]
    assert (taken["partition"], taken["next_offset"]) == (PARTITION, "10")
    assert int(taken["bytes"]) > 0
    assert "nothing new since" in again.stdout
    (anew,) = full.document()["checkpoints"]
    assert anew["uploaded_bytes"] == anew["bytes"]
    assert failed.code == 1
    assert "partition 3 failed: there is no" in failed.stdout
