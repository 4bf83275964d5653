"""The only aiokafka producer: what it accepts is in the log, or an error is raised."""

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeVar

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from stream.closing import close
from stream.errors import BrokerUnavailable, RecordTooLarge, StreamError

log = logging.getLogger(__name__)

Header = tuple[str, bytes]
_Outcome = TypeVar("_Outcome")

MAX_RECORD_BYTES = 16 << 20
"""What the producer takes; a topic may take less."""
_STOP_WITHIN_S = 10.0


class Delivered(Protocol):
    """What is known of a record in the log; aiokafka's RecordMetadata has it."""

    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...


class Producer:
    """An idempotent producer. Use as an async context manager."""

    def __init__(self, bootstrap: str) -> None:
        """Nothing is connected yet."""
        self._bootstrap = bootstrap
        self._producer: AIOKafkaProducer | None = None

    async def __aenter__(self) -> Self:
        """Connect. Raises BrokerUnavailable."""
        producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            enable_idempotence=True,
            compression_type="zstd",
            linger_ms=5,
            max_batch_size=128 << 10,
            max_request_size=MAX_RECORD_BYTES,
        )
        try:
            await producer.start()
        except (KafkaError, OSError) as error:
            await close(producer.stop())
            raise BrokerUnavailable(
                f"no Kafka broker answers at {self._bootstrap}: {error}; start one with "
                "`gemstream kafka start`, or give the address of yours with --bootstrap"
            ) from error
        self._producer = producer
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Send what is buffered, as far as the broker takes it within some seconds, and disconnect."""
        producer = self._producer
        if producer is None:
            return
        try:
            async with asyncio.timeout(_STOP_WITHIN_S):
                await close(producer.stop())
        except TimeoutError:
            log.warning(
                "the broker at %s has not taken all records within %.0f s; they are left unsent",
                self._bootstrap,
                _STOP_WITHIN_S,
            )
            await producer._sender.close()  # as stop() would have, once all was sent
            await close(producer.client.close())

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
    ) -> Awaitable[Delivered]:
        """Queue a record, its key decides the partition; await the result to know that it is in the log.

        Raises StreamError.
        """
        try:
            delivery: Awaitable[Delivered] = await self._running.send(
                topic, value, key=key, headers=list(headers)
            )
        except MessageSizeTooLargeError as error:
            raise RecordTooLarge(f"a record for topic {topic!r} is too large: {error}") from error
        except (KafkaError, AssertionError) as error:
            raise StreamError(f"a record for topic {topic!r} was not accepted: {error}") from error
        return delivery

    async def send_in_bulk(
        self, topic: str, partition: int, records: Iterable[tuple[bytes, bytes]]
    ) -> list[Awaitable[object]]:
        """Queue (key, value) records of one partition in order, in as few batches as hold them.

        Several times as fast as `send`. Await the results to know that they are in the log. Raises StreamError.
        """
        deliveries: list[Awaitable[object]] = []
        try:
            batch = self._running.create_batch()
            for key, value in records:
                if batch.append(timestamp=None, key=key, value=value) is None:
                    deliveries.append(
                        await self._running.send_batch(batch, topic, partition=partition)
                    )
                    batch = self._running.create_batch()
                    batch.append(timestamp=None, key=key, value=value)
            if batch.record_count():
                deliveries.append(await self._running.send_batch(batch, topic, partition=partition))
        except (KafkaError, AssertionError) as error:
            raise StreamError(f"records for topic {topic!r} were not accepted: {error}") from error
        return deliveries

    @property
    def _running(self) -> AIOKafkaProducer:
        if self._producer is None:
            raise StreamError("the producer is not started")
        return self._producer


async def wait_for_delivery(deliveries: Sequence[Awaitable[_Outcome]]) -> list[_Outcome]:
    """Wait until every queued record is in the log, and tell where. Raises StreamError for the first that is not."""
    try:
        return await asyncio.gather(*deliveries)
    except (MessageSizeTooLargeError, RecordListTooLargeError) as error:
        raise RecordTooLarge(f"the broker refuses a record for its size: {error}") from error
    except KafkaError as error:
        raise StreamError(f"the broker did not take a record: {error}") from error
