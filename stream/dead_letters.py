"""What cannot be decoded goes, bytes and all, to the dead-letter topic."""

from collections.abc import Sequence

from stream.decode import Rejected
from stream.producer import Producer, wait_for_delivery

SOURCE_TOPIC = "gemstream-source-topic"
SOURCE_PARTITION = "gemstream-source-partition"
SOURCE_OFFSET = "gemstream-source-offset"
REASON = "gemstream-reason"


class DeadLetters:
    """Writes rejected records with their key, value and headers, and headers saying whence and why."""

    def __init__(self, producer: Producer, source_topic: str, topic: str) -> None:
        """`producer` must be started."""
        self._producer = producer
        self._source_topic = source_topic
        self._topic = topic

    async def write(self, rejected: Sequence[Rejected]) -> None:
        """Return when every record is in the log. Raises StreamError."""
        deliveries = []
        for letter in rejected:
            record = letter.record
            headers = [
                *record.headers,
                (SOURCE_TOPIC, self._source_topic.encode()),
                (SOURCE_PARTITION, str(record.partition).encode()),
                (SOURCE_OFFSET, str(record.offset).encode()),
                (REASON, letter.reason.encode()),
            ]
            deliveries.append(
                await self._producer.send(
                    self._topic, record.value, key=record.key, headers=headers
                )
            )
        await wait_for_delivery(deliveries)
