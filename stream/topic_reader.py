"""Reads a topic from its beginning, outside any consumer group: to its end, or on and on."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from stream.closing import close
from stream.errors import BrokerUnavailable, StreamError
from stream.topics import describe_cluster

_POLL_MS = 500
_LOOK_AFTER_S = 5.0


@dataclass(frozen=True)
class Batch:
    """Records of one partition, in order."""

    records: Sequence[ConsumerRecord]
    next_offset: int
    """Behind the last one."""
    is_at_end: bool
    """All that was there when the reading began has been read."""


async def read_topic(bootstrap: str, topic: str) -> AsyncIterator[ConsumerRecord]:
    """Every record that is in the topic when the reading begins, partition by partition.

    Raises BrokerUnavailable, and StreamError when there is no such topic.
    """
    num_partitions = (await describe_cluster(bootstrap)).partitions.get(topic)
    if num_partitions is None:
        raise StreamError(f"Kafka at {bootstrap} has no topic {topic!r}")
    async with _reading(bootstrap, topic) as consumer:
        for partition in range(num_partitions):
            async for record in _read_partition(consumer, TopicPartition(topic, partition)):
                yield record


async def _read_partition(
    consumer: AIOKafkaConsumer, where: TopicPartition
) -> AsyncIterator[ConsumerRecord]:
    consumer.assign([where])
    end = (await consumer.end_offsets([where]))[where]
    await consumer.seek_to_beginning(where)
    while await consumer.position(where) < end:
        polled = await consumer.getmany(where, timeout_ms=1_000)
        for record in polled.get(where, []):
            if record.offset < end:
                yield record


async def follow_topic(bootstrap: str, topic: str) -> AsyncIterator[ConsumerRecord]:
    """Every record of a topic from its beginning on, and then what comes. Raises BrokerUnavailable."""
    async with _reading(bootstrap, topic, topic) as consumer:
        async for record in consumer:
            yield record


async def follow_partition(
    bootstrap: str, topic: str, start_offset: int, max_records: int
) -> AsyncIterator[Batch]:
    """Every record of a topic's partition 0 from an offset on, and then what comes; empty batches while nothing does.

    An offset that the partition does not reach means another topic of that name: it is read from its beginning. Raises
    BrokerUnavailable, also when the broker goes away later.
    """
    where = TopicPartition(topic, 0)
    async with _reading(bootstrap, topic) as consumer:
        consumer.assign([where])
        end = (await consumer.end_offsets([where]))[where]
        if start_offset <= end:
            consumer.seek(where, start_offset)
        else:
            await consumer.seek_to_beginning(where)
        looked_s = time.monotonic()
        while True:
            polled = await consumer.getmany(where, timeout_ms=_POLL_MS, max_records=max_records)
            records = polled.get(where, [])
            position = await consumer.position(where)
            if records or time.monotonic() - looked_s > _LOOK_AFTER_S:
                if not records:  # a consumer without a broker waits for ever and says nothing
                    async with asyncio.timeout(_LOOK_AFTER_S):
                        await consumer.end_offsets([where])
                looked_s = time.monotonic()
            yield Batch(records, position, position >= end)


@asynccontextmanager
async def _reading(bootstrap: str, topic: str, *subscribed: str) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer without a group that begins at the beginning; errors name `topic`. Raises BrokerUnavailable."""
    consumer = AIOKafkaConsumer(
        *subscribed,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    try:
        await consumer.start()
        yield consumer
    except (KafkaError, OSError) as error:
        raise BrokerUnavailable(
            f"cannot read {topic!r} from Kafka at {bootstrap}: {error}"
        ) from error
    finally:
        await close_consumer(consumer)


async def close_consumer(consumer: AIOKafkaConsumer) -> None:
    """Leave the group, if any, and close the connections; also while the broker is away."""
    try:
        await close(consumer.stop())
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Nobody cancelled us: aiokafka cancelled a fetch that waits to try again, and stumbled before this.
        await consumer._client.close()
