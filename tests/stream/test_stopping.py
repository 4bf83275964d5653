"""A node that ends while it waits for the broker: a question or a letter under way must not keep it."""

import asyncio
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from services.local_kafka import RunningKafka
from stream import ingest
from stream.decode import Rejected
from stream.topics import TopicsConfig, partition_of
from tests.stream.nodes import Node, produce

pytestmark = pytest.mark.broker


async def test_a_question_under_way_does_not_keep_a_consumer_from_stopping(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the broker is away the client asks for committed offsets for ever, also once it is closed."""
    asked = asyncio.Event()

    async def unanswered(self: AIOKafkaConsumer, where: TopicPartition) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(AIOKafkaConsumer, "committed", unanswered)
    node = Node(kafka.bootstrap, topics, tmp_path, f"state-{uuid.uuid4().hex[:8]}")
    await node.consumer.start()
    async with asyncio.timeout(30):
        await asked.wait()
        await node.consumer.stop()
    node.stores.close_all()


class _NobodyTakesThem:
    """As DeadLetters while the broker is away: the client tries for ever."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def write(self, rejected: Sequence[Rejected]) -> None:
        self.asked.set()
        await asyncio.Event().wait()


async def test_letters_that_nobody_takes_do_not_keep_the_loop_from_stopping(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "_LETTERS_WITHIN_S", 0.1)
    await produce(kafka.bootstrap, topics.interactions, [(b"ann", b"rubbish")])
    node = Node(kafka.bootstrap, topics, tmp_path, f"state-{uuid.uuid4().hex[:8]}")
    letters: Any = _NobodyTakesThem()
    node.ingest._dead_letters = letters
    await node.consumer.start()
    running = asyncio.create_task(node.ingest.run())
    async with asyncio.timeout(30):
        await letters.asked.wait()
        node.ingest.stop()
        await running
        partition = partition_of("ann", topics.num_partitions)
        assert node.stores.get(partition).position() is None, "read again by whoever comes next"
        await node.consumer.stop()
    node.stores.close_all()
