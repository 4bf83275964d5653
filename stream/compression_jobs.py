"""Dirty marks to jobs on Kafka. The marks are the truth; a job that is lost or repeated does no harm."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from protos.compression_pb2 import CompressionJob
from state.errors import ConfigError, StoreClosed
from state.partition_stores import PartitionStores
from state.user_store import DirtyMark
from stream.errors import StreamError
from stream.producer import Producer, wait_for_delivery

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class DispatchConfig:
    """When a dirty mark becomes a job, and when it becomes one again."""

    interval_s: float = 0.25
    redispatch_after_s: float = 30.0
    """A mark that is still there so long after its job was sent gets another."""

    def __post_init__(self) -> None:
        """Check the limits."""
        if not 0 < self.interval_s <= self.redispatch_after_s:
            raise ConfigError(
                f"interval_s is {self.interval_s}; it must be above 0 and at most "
                f"redispatch_after_s ({self.redispatch_after_s})"
            )


class JobDispatcher:
    """Sends one job per dirty user, and waits for its outcome before it sends the next for the same user."""

    def __init__(
        self,
        stores: PartitionStores,
        producer: Producer,
        topic: str,
        owner_address: str,
        config: DispatchConfig,
    ) -> None:
        """`owner_address` is where workers find this node's StateService."""
        self._stores = stores
        self._producer = producer
        self._topic = topic
        self._owner_address = owner_address
        self._config = config
        self._sent_at: dict[str, float] = {}
        self._wake = asyncio.Event()
        self.dirty_users: int | None = None
        """Users owed a summary, as of the last round: at most `redispatch_after_s` ago; None before the first."""

    def wake(self) -> None:
        """A boundary moved."""
        self._wake.set()

    def completed(self, user_id: str) -> None:
        """A summary came back for the user; if the mark is still there, the next round sends a new job."""
        self._sent_at.pop(user_id, None)
        self._wake.set()

    async def run(self, served: Callable[[], set[int]]) -> None:
        """Dispatch for the partitions `served` names, until cancelled."""
        while True:
            try:
                await self._dispatch(served())
            except StreamError as error:
                log.warning("compression jobs not sent, will try again: %s", error)
            await asyncio.sleep(self._config.interval_s)
            await self._wait_for_work()

    async def _wait_for_work(self) -> None:
        try:
            await asyncio.wait_for(self._wake.wait(), self._config.redispatch_after_s)
        except TimeoutError:
            return
        self._wake.clear()

    async def _dispatch(self, partitions: set[int]) -> None:
        now = time.monotonic()
        marks = await asyncio.to_thread(self._dirty_marks, partitions)
        self.dirty_users = len(marks)
        due_before = now - self._config.redispatch_after_s
        deliveries = []
        for mark in marks:
            if self._sent_at.get(mark.user_id, due_before) > due_before:
                continue
            job = CompressionJob(
                user_id=mark.user_id,
                lifecycle_boundary=mark.lifecycle_boundary,
                owner_address=self._owner_address,
            )
            deliveries.append(
                await self._producer.send(
                    self._topic, job.SerializeToString(), key=mark.user_id.encode()
                )
            )
            self._sent_at[mark.user_id] = now
        await wait_for_delivery(deliveries)
        dirty = {mark.user_id for mark in marks}
        self._sent_at = {user: sent for user, sent in self._sent_at.items() if user in dirty}

    def _dirty_marks(self, partitions: set[int]) -> list[DirtyMark]:
        marks = []
        for partition in sorted(partitions):
            try:
                marks += self._stores.get(partition).dirty_marks()
            except StoreClosed:
                continue  # given away meanwhile: its new owner dispatches
        return marks
