"""Processes that run the ingest half of a state node and meet their end at a chosen point."""

import asyncio
import contextlib
import functools
import logging
import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from state.partition_stores import PartitionStores
from state.rocks_config import RocksConfig
from state.rocks_store import RocksMemory, RocksStore
from stream.consumer import ConsumerConfig, InteractionConsumer
from stream.dead_letters import DeadLetters
from stream.decode import Decoder, DecoderConfig
from stream.errors import LeaseExpired
from stream.ingest import Ingest
from stream.producer import Producer
from stream.topics import TopicsConfig
from tests.state.builders import SMALL

POINTS: dict[str, tuple[type, str, bool]] = {
    "before the batch": (RocksStore, "write", False),
    "after the batch": (RocksStore, "write", True),
    "after the flush": (RocksStore, "flush", True),
    "after the commit": (InteractionConsumer, "commit", True),
    "a store is opened": (PartitionStores, "open", True),
    "partitions are taken over": (InteractionConsumer, "on_partitions_assigned", False),
    "partitions were taken over": (InteractionConsumer, "on_partitions_assigned", True),
    "partitions are given up": (InteractionConsumer, "on_partitions_revoked", True),
    "the lease is looked at": (InteractionConsumer, "check_lease", False),
}
"""Where a member can end: class, method, and whether behind it."""


@dataclass(frozen=True)
class End:
    """The `nth` time that `point` is passed, the process gets `number`."""

    point: str
    nth: int
    number: int = signal.SIGKILL


@dataclass(frozen=True)
class Member:
    """One process of the group; `directory` keeps its databases and what it reports."""

    directory: Path
    bootstrap: str
    topics: TopicsConfig
    member_id: str | None
    end: End | None = None

    def stores(self) -> PartitionStores:
        """Its databases."""
        memory = RocksMemory(RocksConfig(block_cache_bytes=1 << 20, memtable_bytes=1 << 20))
        return PartitionStores(
            lambda partition: RocksStore(self.directory / str(partition), memory), SMALL
        )

    def start(self) -> BaseProcess:
        """Begin in a process of its own, forked off a clean server that has imported everything."""
        processes = multiprocessing.get_context("forkserver")
        processes.set_forkserver_preload(["tests.end_to_end.members"])
        process = processes.Process(target=_run, args=(self,), daemon=True)
        process.start()
        return process

    def reported(self, what: str) -> bool:
        """Whether `report` was called with it."""
        return (self.directory / what).exists()

    def report(self, what: str) -> None:
        """Leave a note for the test."""
        (self.directory / what).touch()


def _run(member: Member) -> None:
    logging.disable(logging.CRITICAL)
    member.directory.mkdir(parents=True, exist_ok=True)
    _report_lease(member)
    if member.end is not None:
        _arm(member.end)
    asyncio.run(_ingest(member))


async def _ingest(member: Member) -> None:
    topics, stores = member.topics, member.stores()
    config = ConsumerConfig(
        group=topics.interactions,
        member_id=member.member_id,
        max_poll_records=60,
        session_timeout_ms=6_000,
        heartbeat_interval_ms=500,
    )
    consumer = InteractionConsumer(member.bootstrap, topics.interactions, config, stores)
    async with Producer(member.bootstrap) as producer:
        letters = DeadLetters(producer, topics.interactions, topics.dead_letters)
        decoder = Decoder(DecoderConfig(), topics.num_partitions)
        ingest = Ingest(consumer, decoder, letters, stores, lambda: None)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ingest.stop)
        await consumer.start()
        try:
            await ingest.run()
        finally:
            await consumer.stop()
            stores.close_all()


def _arm(end: End) -> None:
    owner, name, behind = POINTS[end.point]
    original = getattr(owner, name)
    passed = 0

    def strike() -> None:
        nonlocal passed
        passed += 1
        if passed == end.nth:
            os.kill(os.getpid(), end.number)

    setattr(owner, name, _struck(original, strike, behind))


def _struck(original: Any, strike: Callable[[], None], behind: bool) -> Any:
    if asyncio.iscoroutinefunction(original):

        @functools.wraps(original)
        async def call_async(*arguments: Any, **named: Any) -> Any:
            with _striking(strike, behind):
                return await original(*arguments, **named)

        return call_async

    @functools.wraps(original)
    def call(*arguments: Any, **named: Any) -> Any:
        with _striking(strike, behind):
            return original(*arguments, **named)

    return call


@contextlib.contextmanager
def _striking(strike: Callable[[], None], behind: bool) -> Any:
    if not behind:
        strike()
    yield
    if behind:
        strike()


def _report_lease(member: Member) -> None:
    """Leave a note when the lease refuses a write."""
    original = InteractionConsumer.check_lease

    def check_lease(consumer: InteractionConsumer) -> None:
        try:
            original(consumer)
        except LeaseExpired:
            member.report("refused")
            raise

    setattr(InteractionConsumer, "check_lease", check_lease)  # noqa: B010  a method replaced
