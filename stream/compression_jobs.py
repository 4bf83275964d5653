"""Dirty marks to jobs on Kafka. The marks are the truth; a job that is lost or repeated does no harm."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from protos.compression_pb2 import CompressionJob
from state.errors import StoreClosed
from state.partition_stores import PartitionStores
from state.user_store import DirtyMark
from stream.dead_letters import COMPRESSION_JOB, KIND, DeadLetters
from stream.decode import Rejected
from stream.errors import StreamError
from stream.owed_summaries import Backlog, DispatchConfig, Owed, OwedSummaries
from stream.producer import Header, Producer, wait_for_delivery

log = logging.getLogger(__name__)

_REST_PER_SCAN = 4
"""A round over very many marks takes time; the next waits so many times as long."""

_AT_ONCE = 10_000


@dataclass(frozen=True)
class _SentJob:
    """A job as the record that it is in its topic."""

    partition: int
    offset: int
    key: bytes
    value: bytes
    timestamp: int = 0
    headers: Sequence[Header] = ((KIND, COMPRESSION_JOB),)


class JobDispatcher:
    """Sends one job per dirty user, and waits for its outcome before it sends the next for the same user."""

    def __init__(
        self,
        stores: PartitionStores,
        producer: Producer,
        topic: str,
        owner_address: str,
        letters: DeadLetters,
        config: DispatchConfig,
    ) -> None:
        """`owner_address` is where workers find this node's StateService; `letters` are of `topic`."""
        self._stores = stores
        self._producer = producer
        self._topic = topic
        self._owner_address = owner_address
        self._letters = letters
        self._config = config
        self._owed = OwedSummaries(config)
        self._scanned = False
        self._scan_s = 0.0
        self._wake = asyncio.Event()
        self.counters: Counter[str] = Counter()
        """Jobs `sent`, those of them that were `resent`, and `poisoned` users."""

    def backlog(self) -> Backlog | None:
        """As of the last round, at most `redispatch_after_s` ago; None before the first."""
        return self._owed.backlog(time.monotonic()) if self._scanned else None

    def wake(self) -> None:
        """A boundary moved."""
        self._wake.set()

    def progressed(self, user_id: str, bundle_version: str = "") -> None:
        """A part of a summary came back, and the worker goes on. `bundle_version` is as in a DirtyMark."""
        self._owed.progressed(user_id, time.monotonic(), bundle_version)

    def released(self, user_id: str, bundle_version: str = "") -> None:
        """A worker stopped; if the mark is still there, the next round sends a new job."""
        self._owed.released(user_id, time.monotonic(), bundle_version)
        self._wake.set()

    def completed(self, user_id: str, bundle_version: str = "") -> None:
        """The summary ends at the boundary."""
        self._owed.completed(user_id, bundle_version)
        self._wake.set()  # there is room for another job

    def failed(self, user_id: str, reason: str, bundle_version: str = "") -> None:
        """A worker met an error with this user."""
        self._owed.failed(user_id, reason, time.monotonic(), bundle_version)
        self._wake.set()

    async def run(self, served: Callable[[], set[int]]) -> None:
        """Dispatch for the partitions `served` names, until cancelled."""
        while True:
            try:
                await self._round(served())
            except StreamError as error:
                log.warning("compression jobs not sent, will try again: %s", error)
                await asyncio.sleep(self._config.interval_s)
                continue
            await asyncio.sleep(max(self._config.interval_s, _REST_PER_SCAN * self._scan_s))
            await self._wait_for_work()

    async def _wait_for_work(self) -> None:
        now_s, wait_s = time.monotonic(), self._config.redispatch_after_s
        if (due_s := self._owed.next_due_s(now_s)) is not None:
            wait_s = min(wait_s, due_s - now_s)
        try:
            await asyncio.wait_for(self._wake.wait(), wait_s)
        except TimeoutError:
            return
        self._wake.clear()

    async def _round(self, partitions: set[int]) -> None:
        if self._owed.wants_marks(time.monotonic()):
            await self._look(partitions)
        now_s = time.monotonic()
        await self._send(self._owed.due(now_s), now_s)
        for owed in self._owed.poisoned():
            await self._give_up(owed)

    async def _look(self, partitions: set[int]) -> None:
        start_s = time.monotonic()
        changes = await asyncio.to_thread(lambda: self._owed.changes(self._dirty_marks(partitions)))
        now_s = time.monotonic()
        self._scan_s = now_s - start_s
        for part in changes.parts(_AT_ONCE):
            self._owed.see(part, now_s)
            await asyncio.sleep(0)  # calls are answered in between
        self._scanned = True

    async def _send(self, due: Sequence[Owed], now_s: float) -> None:
        """All of them, or StreamError: then they are due as before."""
        deliveries = []
        for owed in due:
            self._owed.send(owed, now_s)
        try:
            for owed in due:
                deliveries.append(
                    await self._producer.send(
                        self._topic, self._job(owed), key=owed.user_id.encode()
                    )
                )
            delivered = await wait_for_delivery(deliveries)
        except StreamError:
            for owed in due:
                self._owed.unsend(owed, now_s)
            raise
        for owed, where in zip(due, delivered, strict=True):
            owed.partition, owed.offset = where.partition, where.offset
            self.counters["sent"] += 1
            self.counters["resent"] += owed.sent > 1 or owed.failures > 0

    async def _give_up(self, owed: Owed) -> None:
        """Tell of a user that failed too often, then let it rest."""
        reason = f"failed {owed.failures} times at boundary {owed.boundary}: {owed.reason}"
        key, value = owed.user_id.encode(), self._job(owed)
        job = _SentJob(owed.partition, owed.offset, key, value)
        await self._letters.write([Rejected(job, reason)])
        self._owed.rest(owed)
        self.counters["poisoned"] += 1
        log.error("user %r is not compressed any more: it %s", owed.user_id, reason)

    def _job(self, owed: Owed) -> bytes:
        return CompressionJob(
            user_id=owed.user_id,
            lifecycle_boundary=owed.boundary,
            owner_address=self._owner_address,
            bundle_version=owed.bundle_version,
        ).SerializeToString()

    def _dirty_marks(self, partitions: set[int]) -> list[DirtyMark]:
        marks = []
        for partition in sorted(partitions):
            try:
                marks += self._stores.get(partition).dirty_marks()
            except StoreClosed:
                continue  # given away meanwhile: its new owner dispatches
        return marks
