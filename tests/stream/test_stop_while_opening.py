"""A node that ends while its partitions are still opening: stopping must not wait for the broker."""

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from services.local_kafka import RunningKafka
from stream.topics import TopicsConfig
from tests.stream.nodes import Node

pytestmark = pytest.mark.broker


async def test_a_question_under_way_does_not_keep_a_consumer_from_stopping(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client asks for committed offsets again and again, also once its connections are closed."""
    asked, go = asyncio.Event(), asyncio.Event()
    committed = AIOKafkaConsumer.committed

    async def slow(self: AIOKafkaConsumer, where: TopicPartition) -> Any:
        asked.set()
        await go.wait()
        return await committed(self, where)

    monkeypatch.setattr(AIOKafkaConsumer, "committed", slow)
    node = Node(kafka.bootstrap, topics, tmp_path, f"state-{uuid.uuid4().hex[:8]}")
    await node.consumer.start()
    async with asyncio.timeout(30):
        await asked.wait()
    stopping = asyncio.create_task(node.consumer.stop())
    await asyncio.sleep(0)
    consumer_closed = asyncio.create_task(_closed(node))
    await asyncio.wait([consumer_closed], timeout=10)
    go.set()
    try:
        async with asyncio.timeout(10):
            await stopping
    finally:
        node.stores.close_all()


async def _closed(node: Node) -> None:
    while node.consumer._consumer is not None:
        await asyncio.sleep(0.01)
