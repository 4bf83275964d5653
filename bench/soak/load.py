"""The load: events of a million users at a steady rate, pauses, partitions that get nothing, and reads through gRPC."""

import asyncio
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import grpc.aio
import numpy as np

from bench.ingest.log import random_rows
from bench.ingest.records import Record, send
from protos import state_pb2, state_pb2_grpc
from services.interaction_messages import interaction_to_wire
from stream.producer import Producer, wait_for_delivery
from stream.topics import TopicsConfig, partition_of

_TICK_S = 0.02
_MAX_QUEUED = 20
_RECENT_USERS = 2_000
_ALL, _HALF, _NONE = 1.0, 0.5, 0.0
READ_TIMEOUT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """How much."""

    seconds: float
    rate_per_s: int
    active_s: float
    """Then comes a pause of `idle_s`; each second time, half of the partitions get nothing."""
    idle_s: float
    num_users: int = 1_000_000
    reads_per_s: int = 50

    def share_of_partitions(self, second: float) -> float:
        """Which part of the partitions gets events at that second."""
        number, within = divmod(second, self.active_s + self.idle_s)
        if within >= self.active_s:
            return _NONE
        return _HALF if number % 2 else _ALL


class ZipfEvents:
    """Events that happen now, of users drawn with probability ~ 1 / rank."""

    def __init__(self, num_users: int, topics: TopicsConfig) -> None:
        """Always the same users in the same order."""
        self._random = np.random.default_rng(0)
        weights = 1.0 / np.arange(1, num_users + 1)
        self._cumulative = np.cumsum(weights / weights.sum())
        self._partition_of = lru_cache(num_users)(
            lambda user_id: partition_of(user_id, topics.num_partitions)
        )
        self._count = 0

    def take(self, count: int, partitions: range) -> Iterator[Record]:
        """The next `count` events, without those of other partitions."""
        users = np.searchsorted(self._cumulative, self._random.random(count))
        rows = random_rows(np.full(count, time.time_ns() // 1_000_000), self._random)
        for user, row in zip(users.tolist(), rows.tolist(), strict=True):
            user_id = f"user-{user}"
            partition = self._partition_of(user_id)
            if partition in partitions:
                self._count += 1
                message = interaction_to_wire(row, user_id, str(self._count))
                yield partition, user_id.encode(), message.SerializeToString()


@dataclass
class Sent:
    """When how many events were in the log, and who sent the last ones."""

    times_s: list[float] = field(default_factory=list)
    totals: list[int] = field(default_factory=list)
    users: deque[str] = field(default_factory=lambda: deque(maxlen=_RECENT_USERS))

    @property
    def total(self) -> int:
        """Events in the log."""
        return self.totals[-1] if self.totals else 0

    def add(self, records: list[Record]) -> None:
        """These are in the log now."""
        self.times_s.append(time.monotonic())
        self.totals.append(self.total + len(records))
        self.users.extend(key.decode() for _, key, _ in records[:: max(1, len(records) // 50)])

    def waiting_s(self, applied: int) -> float:
        """How long the oldest event that is not applied has been in the log."""
        first = bisect_right(self.totals, applied)
        return time.monotonic() - self.times_s[first] if first < len(self.totals) else 0.0


async def produce(load: Load, bootstrap: str, topics: TopicsConfig, sent: Sent) -> None:
    """Send for `load.seconds`."""
    events = ZipfEvents(load.num_users, topics)
    queued: deque[tuple[list[Record], list[Awaitable[object]]]] = deque()
    start = last = time.monotonic()
    async with Producer(bootstrap) as producer:
        while (now := time.monotonic()) - start < load.seconds:
            share = load.share_of_partitions(now - start)
            count = int((now - last) * load.rate_per_s) if share else 0
            last = now
            records = list(events.take(count, range(int(share * topics.num_partitions))))
            if records:
                queued.append((records, await send(producer, topics.interactions, records)))
            while queued and (len(queued) > _MAX_QUEUED or all(d.done() for d in queued[0][1])):  # type: ignore[attr-defined]  # futures
                delivered, deliveries = queued.popleft()
                await wait_for_delivery(deliveries)
                sent.add(delivered)
            await asyncio.sleep(_TICK_S)
        for delivered, deliveries in queued:
            await wait_for_delivery(deliveries)
            sent.add(delivered)


@dataclass
class Reads:
    """What reading gave."""

    taken_ms: list[float] = field(default_factory=list)
    not_found: int = 0
    """Users whose first event was not applied yet."""
    failed: int = 0


async def read(load: Load, address: str, sent: Sent, reads: Reads) -> None:
    """Read users that sent something lately, until cancelled."""
    random = np.random.default_rng(1)
    async with grpc.aio.insecure_channel(address) as channel:
        stub = state_pb2_grpc.StateServiceStub(channel)
        while True:
            await asyncio.sleep(1 / load.reads_per_s)
            if not sent.users:
                continue
            user = sent.users[int(random.integers(len(sent.users)))]
            start = time.perf_counter()
            try:
                await stub.GetUserState(
                    state_pb2.GetUserStateRequest(user_id=user, bundle_version="bench"),
                    timeout=READ_TIMEOUT_S,
                )
            except grpc.aio.AioRpcError as error:
                absent = error.code() is grpc.StatusCode.NOT_FOUND
                reads.not_found += absent
                reads.failed += not absent
            reads.taken_ms.append(1_000 * (time.perf_counter() - start))
