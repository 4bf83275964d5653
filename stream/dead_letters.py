"""What cannot be decoded, or fails again and again, goes, bytes and all, to the dead-letter topic."""

import asyncio
from collections.abc import Sequence

from stream.decode import Rejected
from stream.errors import RecordTooLarge
from stream.producer import Header, Producer, wait_for_delivery

SOURCE_TOPIC = "gemstream-source-topic"
SOURCE_PARTITION = "gemstream-source-partition"
SOURCE_OFFSET = "gemstream-source-offset"
REASON = "gemstream-reason"
KIND = "gemstream-kind"
"""What the value is; without it an interaction."""
COMPRESSION_JOB = b"compression-job"
CUT_FROM = "gemstream-cut-from-bytes"
"""Only on a value the dead-letter topic would not take whole; all of it is at the source offset."""

_CUT_BYTES = 64 << 10
_LETTERS_AT_ONCE = 500
"""Of those that wait for room in the client's batch, each wakes with every batch that leaves."""


class DeadLetters:
    """Writes rejected records with their key, value and headers, and headers saying whence and why."""

    def __init__(self, producer: Producer, source_topic: str, topic: str) -> None:
        """`producer` must be started."""
        self._producer = producer
        self._source_topic = source_topic
        self._topic = topic

    async def write(self, rejected: Sequence[Rejected]) -> None:
        """Return when every record is in the log. Raises StreamError."""
        for start in range(0, len(rejected), _LETTERS_AT_ONCE):
            some = rejected[start : start + _LETTERS_AT_ONCE]
            await asyncio.gather(*map(self._write_one, some))

    async def _write_one(self, letter: Rejected) -> None:
        """A record that the topic does not take whole must not stop the others: it is cut, and says so."""
        value = letter.record.value
        try:
            await self._send(letter, value)
        except RecordTooLarge:
            size = len(value or b"")
            await self._send(letter, (value or b"")[:_CUT_BYTES], (CUT_FROM, str(size).encode()))

    async def _send(self, letter: Rejected, value: bytes | None, *more: Header) -> None:
        record = letter.record
        headers = [
            *((name, content or b"") for name, content in record.headers),
            (SOURCE_TOPIC, self._source_topic.encode()),
            (SOURCE_PARTITION, str(record.partition).encode()),
            (SOURCE_OFFSET, str(record.offset).encode()),
            (REASON, letter.reason.encode()),
            *more,
        ]
        # Kafka's protocol knows a record of nothing, the client does not.
        key = b"" if record.key is None and value is None else record.key
        delivery = await self._producer.send(self._topic, value, key=key, headers=headers)
        await wait_for_delivery([delivery])
