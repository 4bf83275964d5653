"""An event log onto the interactions topic: what `gemstream produce` does."""

from collections.abc import Awaitable, Callable, Iterator

from services.interaction_messages import interaction_to_wire
from state.event_log import EventLog
from stream.producer import Producer, wait_for_delivery
from stream.topics import TopicsConfig, partition_of

_BULK = 1_000
"""Records of a partition that are queued together."""
_MAX_QUEUED = 50
"""Bulks queued before the ones before them must be in the log."""


async def produce_events(
    log: EventLog, producer: Producer, topics: TopicsConfig, on_delivered: Callable[[int], None]
) -> None:
    """Send every event, those of a user in order; return when all are in the log. Raises StreamError.

    `on_delivered` hears how many more are safe.
    """
    partitions = [partition_of(user_id, topics.num_partitions) for user_id in log.user_ids]
    keys = [user_id.encode() for user_id in log.user_ids]
    waiting: list[list[tuple[bytes, bytes]]] = [[] for _ in range(topics.num_partitions)]
    queued: list[tuple[int, list[Awaitable[object]]]] = []

    async def queue(partition: int) -> None:
        records, waiting[partition] = waiting[partition], []
        deliveries = await producer.send_in_bulk(topics.interactions, partition, records)
        queued.append((len(records), deliveries))

    async def deliver(keep: int) -> None:
        while len(queued) > keep:
            count, deliveries = queued.pop(0)
            await wait_for_delivery(deliveries)
            on_delivered(count)

    for user, value in _encode(log):
        partition = partitions[user]
        waiting[partition].append((keys[user], value))
        if len(waiting[partition]) >= _BULK:
            await queue(partition)
            await deliver(_MAX_QUEUED)
    for partition in range(topics.num_partitions):
        await queue(partition)
    await deliver(0)


def _encode(log: EventLog) -> Iterator[tuple[int, bytes]]:
    """User index and serialised Interaction of every event."""
    for user, event_id, row in zip(
        log.user_index.tolist(), log.event_ids, log.rows.tolist(), strict=True
    ):
        message = interaction_to_wire(row, log.user_ids[user], event_id)
        yield user, message.SerializeToString()
