"""Which node serves which partition: owners announce it on a compacted topic, whoever has a question follows it."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from google.protobuf.message import DecodeError

from protos.ownership_pb2 import PartitionOwner
from stream.errors import StreamError
from stream.producer import Producer, wait_for_delivery
from stream.topic_reader import follow_topic
from stream.topics import TopicsConfig, ensure_topics

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.1
_REPEAT_AFTER_S = 30.0
"""An announcement that came late from a former owner stands no longer than this."""
_FOLLOW_AGAIN_AFTER_S = 1.0


class OwnershipAnnouncer:
    """Tells where the partitions that this node serves can be read."""

    def __init__(self, producer: Producer, topic: str, address: str) -> None:
        """`address` is where others reach this node's StateService."""
        self._producer = producer
        self._topic = topic
        self._address = address

    async def run(self, served: Callable[[], set[int]]) -> None:
        """Announce what `served` names, as soon as it changes and again from time to time, until cancelled."""
        announced: frozenset[int] = frozenset()
        repeat_at_s = 0.0
        while True:
            serving, now_s = frozenset(served()), time.monotonic()
            if due := serving if now_s >= repeat_at_s else serving - announced:
                try:
                    await self._announce(due)
                    announced, repeat_at_s = serving, now_s + _REPEAT_AFTER_S
                except StreamError as error:
                    log.warning("ownership not announced, will try again: %s", error)
            announced &= serving
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _announce(self, partitions: Iterable[int]) -> None:
        deliveries = []
        for partition in sorted(partitions):
            owner = PartitionOwner(partition=partition, address=self._address)
            deliveries.append(
                await self._producer.send(
                    self._topic, owner.SerializeToString(), key=str(partition).encode()
                )
            )
        await wait_for_delivery(deliveries)


class Owners:
    """The newest announcement of every partition. `run` keeps it up to date."""

    def __init__(self, bootstrap: str, topics: TopicsConfig) -> None:
        """Nothing is known yet."""
        self._bootstrap = bootstrap
        self._topics = topics
        self._addresses: dict[int, str] = {}
        self._news = asyncio.Event()

    async def find(self, partition: int, timeout_s: float) -> str | None:
        """Where a partition is served by the last word; waits for the first word on it, and gives None after that."""
        try:
            async with asyncio.timeout(timeout_s):
                while partition not in self._addresses:
                    await self._news.wait()
        except TimeoutError:
            return None
        return self._addresses[partition]

    async def run(self) -> None:
        """Follow the topic until cancelled. While the broker is away the last word stands."""
        while True:
            try:
                await ensure_topics(self._bootstrap, self._topics)
                async for record in follow_topic(self._bootstrap, self._topics.owners):
                    self._hear(record.value)
            except StreamError as error:
                log.warning("cannot follow who owns which partition, will try again: %s", error)
            await asyncio.sleep(_FOLLOW_AGAIN_AFTER_S)

    def _hear(self, value: bytes | None) -> None:
        try:
            owner = PartitionOwner.FromString(value or b"")
        except DecodeError:
            log.warning("a record in %r is no PartitionOwner", self._topics.owners)
            return
        if owner.address and self._addresses.get(owner.partition) != owner.address:
            log.info("partition %d is served by %s", owner.partition, owner.address)
            self._addresses[owner.partition] = owner.address
            self._news.set()
            self._news = asyncio.Event()
