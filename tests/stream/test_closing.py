"""A task that is cancelled while it closes a real client of aiokafka ends, and what follows a topic does not go on."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient

from services.local_kafka import RunningKafka
from stream.closing import close
from stream.producer import Producer
from stream.topic_reader import read_topic
from stream.topics import TopicsConfig, describe_cluster, ensure_topics

DEADLINE_S = 20.0
Use = Callable[[str, TopicsConfig], Coroutine[Any, Any, object]]


async def look(bootstrap: str, topics: TopicsConfig) -> None:
    await describe_cluster(bootstrap)


async def read(bootstrap: str, topics: TopicsConfig) -> None:
    async for _ in read_topic(bootstrap, topics.interactions):
        pass


async def produce(bootstrap: str, topics: TopicsConfig) -> None:
    async with Producer(bootstrap):
        pass


@pytest.mark.broker
@pytest.mark.parametrize("use", [look, read, produce])
async def test_a_cancellation_while_a_client_closes_is_not_lost(
    kafka: RunningKafka, topics: TopicsConfig, monkeypatch: pytest.MonkeyPatch, use: Use
) -> None:
    await ensure_topics(kafka.bootstrap, topics)
    closed, times = AIOKafkaClient.close, 0

    async def close_cancelled(client: AIOKafkaClient) -> None:
        nonlocal times
        times += 1
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await closed(client)

    async def again_and_again() -> None:
        while True:
            await use(kafka.bootstrap, topics)

    monkeypatch.setattr(AIOKafkaClient, "close", close_cancelled)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(again_and_again())
    assert times == 1


async def test_a_cancellation_of_before_does_not_disturb_what_ends() -> None:
    """What is behind the closing is done, too: a task that ends because it was cancelled still tidies up."""
    done = []

    async def run() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await close(asyncio.sleep(0))
            done.append("tidied up")

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert done == ["tidied up"]


async def test_a_deadline_that_passes_meanwhile_is_told() -> None:
    async def swallow() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await close(swallow())
