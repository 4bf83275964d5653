"""Logs as records, and records into a topic: as fast as it goes, or at a steady rate."""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

from services.interaction_messages import interaction_to_wire
from state.event_log import EventLog
from stream.producer import Producer, wait_for_delivery
from stream.topics import TopicsConfig, ensure_topics, partition_of

Record = tuple[int, bytes, bytes]
"""Partition, key, value."""

_BULK = 10_000
_MAX_QUEUED = 20
_TICK_S = 0.02


def encode(log: EventLog, num_partitions: int) -> list[Record]:
    """A log as it lies in the topic, in order."""
    partitions = [partition_of(user_id, num_partitions) for user_id in log.user_ids]
    keys = [user_id.encode() for user_id in log.user_ids]
    return [
        (
            partitions[user],
            keys[user],
            interaction_to_wire(row, log.user_ids[user], event_id).SerializeToString(),
        )
        for user, event_id, row in zip(
            log.user_index.tolist(), log.event_ids, log.rows.tolist(), strict=True
        )
    ]


def num_bytes(records: Iterable[Record]) -> int:
    """Keys and values."""
    return sum(len(key) + len(value) for _, key, value in records)


async def fill(bootstrap: str, topics: TopicsConfig, records: Sequence[Record]) -> None:
    """Make the topics and put everything into them."""
    await ensure_topics(bootstrap, topics)
    async with Producer(bootstrap) as producer:
        queued: deque[list[Awaitable[object]]] = deque()
        for start in range(0, len(records), _BULK):
            bulk = records[start : start + _BULK]
            queued.append(await send(producer, topics.interactions, bulk))
            if len(queued) > _MAX_QUEUED:
                await wait_for_delivery(queued.popleft())
        for deliveries in queued:
            await wait_for_delivery(deliveries)


async def pace(
    producer: Producer,
    topic: str,
    records: Sequence[Record],
    rate_per_s: float,
    on_sent: Callable[[int], None] = lambda _: None,
) -> None:
    """Send at a steady rate; `on_sent` hears how many more are in the log."""
    start, sent = time.perf_counter(), 0
    queued: deque[tuple[int, list[Awaitable[object]]]] = deque()
    while sent < len(records) or queued:
        due = min(len(records), int((time.perf_counter() - start) * rate_per_s))
        if due > sent:
            deliveries = await send(producer, topic, records[sent:due])
            queued.append((due - sent, deliveries))
            sent = due
        while queued and (len(queued) > _MAX_QUEUED or sent == len(records)):
            count, deliveries = queued.popleft()
            await wait_for_delivery(deliveries)
            on_sent(count)
        await asyncio.sleep(_TICK_S)


async def send(
    producer: Producer, topic: str, records: Iterable[Record]
) -> list[Awaitable[object]]:
    """Queue records, those of a partition in order."""
    by_partition: defaultdict[int, list[tuple[bytes, bytes]]] = defaultdict(list)
    for partition, key, value in records:
        by_partition[partition].append((key, value))
    deliveries: list[Awaitable[object]] = []
    for partition, pairs in by_partition.items():
        deliveries += await producer.send_in_bulk(topic, partition, pairs)
    return deliveries
