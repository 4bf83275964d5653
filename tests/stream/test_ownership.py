"""Announcements of owners over a real broker."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Coroutine
from typing import Any

import pytest

from services.local_kafka import RunningKafka
from stream.ownership import Owners, OwnershipAnnouncer
from stream.producer import Producer, wait_for_delivery
from stream.topics import TopicsConfig

pytestmark = pytest.mark.broker

DEADLINE_S = 30.0


@contextlib.asynccontextmanager
async def background(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until_found(owners: Owners, partition: int, address: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while await owners.find(partition, DEADLINE_S) != address:
            await asyncio.sleep(0.02)


async def test_the_last_word_on_a_partition_counts(
    kafka: RunningKafka, topics: TopicsConfig
) -> None:
    async with Producer(kafka.bootstrap) as producer:
        one = OwnershipAnnouncer(producer, topics.owners, "one:1")
        other = OwnershipAnnouncer(producer, topics.owners, "other:2")
        served_by_one, served_by_other = {0, 1}, {2}
        early, late = Owners(kafka.bootstrap, topics), Owners(kafka.bootstrap, topics)
        rubbish = await producer.send(topics.owners, b"\xff\xff", key=b"7")
        await wait_for_delivery([rubbish])
        async with background(
            early.run(), one.run(lambda: served_by_one), other.run(lambda: served_by_other)
        ):
            for partition, address in enumerate(["one:1", "one:1", "other:2"]):
                await until_found(early, partition, address)
            served_by_one.remove(1)
            served_by_other.add(1)
            await until_found(early, 1, "other:2")
        async with background(late.run()):
            for partition, address in enumerate(["one:1", "other:2", "other:2"]):
                await until_found(late, partition, address)


async def test_a_question_waits_for_the_first_word_only_so_long() -> None:
    owners = Owners("nowhere", TopicsConfig())
    answer: Awaitable[str | None] = owners.find(0, 0.01)
    assert await answer is None
