"""A consumer is closed while a fetch waits to try again, as it does while the broker is away."""

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.errors import NodeNotReadyError
from aiokafka.protocol.fetch import FetchRequest

import stream.consumer
from state.key_value_store import MemoryStore
from state.partition_stores import PartitionStores
from state.segments import HistoryConfig
from stream.consumer import ConsumerConfig
from stream.topic_reader import close_consumer


async def consumer_with_a_waiting_fetch() -> AIOKafkaConsumer:
    async def send(node_id: int, request: FetchRequest) -> None:
        raise NodeNotReadyError("the broker is away")

    consumer = AIOKafkaConsumer("topic", bootstrap_servers="127.0.0.1:1")
    consumer._client.send = send
    consumer._fetcher = fetcher = Fetcher(
        consumer._client, consumer._subscription, retry_backoff_ms=60_000
    )
    await asyncio.sleep(0)  # it drops what is pending when it begins
    fetch = asyncio.create_task(fetcher._proc_fetch_request(None, 1, FetchRequest(1, 1, 1, 1, [])))
    fetcher._pending_tasks.add(fetch)
    await asyncio.sleep(0)
    return consumer


async def test_closes_although_aiokafka_stumbles() -> None:
    with pytest.raises(asyncio.CancelledError):
        await (await consumer_with_a_waiting_fetch()).stop()
    await close_consumer(await consumer_with_a_waiting_fetch())


async def test_our_own_cancellation_is_passed_on() -> None:
    consumer = await consumer_with_a_waiting_fetch()
    closing = asyncio.create_task(close_consumer(consumer))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing


async def test_a_member_of_the_group_does_not_wait_for_a_silent_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Silent:
        """As aiokafka's consumer while the broker hangs."""

        def __init__(self) -> None:
            self._client, self.is_closed = self, False

        async def stop(self) -> None:
            await asyncio.Event().wait()

        async def close(self) -> None:
            self.is_closed = True

    monkeypatch.setattr(stream.consumer, "_CLOSE_WITHIN_S", 0.01)
    stores = PartitionStores(lambda _: MemoryStore(), HistoryConfig())
    member = stream.consumer.InteractionConsumer("nowhere:1", "topic", ConsumerConfig(), stores)
    silent: Any = Silent()
    member._consumer = silent
    async with asyncio.timeout(10):
        await member.stop()
    assert silent.is_closed
