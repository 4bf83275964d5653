"""The dispatcher on a real broker: marks become jobs, and a user that always fails a dead letter that can be replayed."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from protos.compression_pb2 import CompressionJob
from services.local_kafka import RunningKafka
from state.key_value_store import MemoryStore
from state.partition_stores import PartitionStores
from stream.compression_jobs import JobDispatcher
from stream.dead_letter_log import read_dead_letters, replay
from stream.dead_letters import DeadLetters
from stream.owed_summaries import DispatchConfig
from stream.producer import Producer
from stream.topics import TopicsConfig
from tests.services.test_cli import gemstream
from tests.state.builders import SMALL, arrive, make_rows
from tests.stream.nodes import read_all, until

pytestmark = pytest.mark.broker


@asynccontextmanager
async def dispatching(
    kafka: RunningKafka, topics: TopicsConfig, config: DispatchConfig
) -> AsyncIterator[tuple[JobDispatcher, PartitionStores]]:
    """A dispatcher of one partition, whose user ann is owed a summary up to 6."""
    stores = PartitionStores(lambda _: MemoryStore(), SMALL)
    stores.open(0).apply(arrive(make_rows(list(range(20)))))
    async with Producer(kafka.bootstrap) as producer:
        letters = DeadLetters(producer, topics.compression_jobs, topics.dead_letters)
        dispatcher = JobDispatcher(
            stores, producer, topics.compression_jobs, "127.0.0.1:1", letters, config
        )
        running = asyncio.create_task(dispatcher.run(lambda: {0, 1}))  # 1 was given away
        try:
            yield dispatcher, stores
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_a_mark_becomes_a_job_and_once_more_if_nothing_is_heard(
    kafka: RunningKafka, topics: TopicsConfig
) -> None:
    config = DispatchConfig(interval_s=0.01, redispatch_after_s=0.05)
    async with dispatching(kafka, topics, config) as (dispatcher, _):
        assert dispatcher.backlog() is None
        await until(lambda: dispatcher.counters["resent"] >= 2)
        backlog = dispatcher.backlog()
        assert backlog is not None
        assert backlog.users == 1
        assert backlog.oldest_s > 0.05
    jobs = await read_all(kafka.bootstrap, topics.compression_jobs, 3)
    assert {job.key for job in jobs} == {b"ann"}
    assert CompressionJob.FromString(jobs[2].value or b"") == CompressionJob(
        user_id="ann", lifecycle_boundary=6, owner_address="127.0.0.1:1"
    )


async def test_a_user_that_always_fails_is_a_dead_letter_until_its_boundary_moves(
    kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path
) -> None:
    config = DispatchConfig(interval_s=0.01, redispatch_after_s=0.05, max_failures=2)
    async with dispatching(kafka, topics, config) as (dispatcher, stores):
        for count in (1, 2):
            await until(lambda: dispatcher.counters["sent"] >= count)  # noqa: B023
            dispatcher.failed("ann", "SummaryError: no")
        await until(lambda: dispatcher.counters["poisoned"] == 1)
        sent = dispatcher.counters["sent"]
        backlog = dispatcher.backlog()
        assert backlog is not None
        assert (backlog.users, backlog.resting) == (1, 1)
        assert len(stores.get(0).dirty_marks()) == 1, "the mark is the truth, and stays"

        bootstrap, source = kafka.bootstrap, topics.compression_jobs
        (letter,) = [each async for each in read_dead_letters(bootstrap, topics.dead_letters)]
        assert letter.reason == "failed 2 times at boundary 6: SummaryError: no"
        assert letter.source.startswith(f"{source}-")
        name = f"{letter.partition}:{letter.offset}"
        shown = await gemstream("dlq", "show", name, "--json", *options_of(topics, kafka, tmp_path))
        document = json.loads(shown.stdout)
        assert document["compression_job"]["user_id"] == "ann"
        assert document["interaction"] is None
        async with Producer(bootstrap) as producer:
            await replay(producer, letter, rekey=True)
        assert dispatcher.counters["sent"] == sent, "it rests"

        stores.get(0).apply(arrive(make_rows([20, 21, 22], first_item=21), first_offset=20))
        dispatcher.wake()
        await until(lambda: dispatcher.counters["sent"] > sent)
    *_, replayed, newest = await read_all(kafka.bootstrap, topics.compression_jobs, sent + 2)
    assert (replayed.key, newest.key) == (b"ann", b"ann")
    jobs = [CompressionJob.FromString(each.value or b"") for each in (replayed, newest)]
    assert [job.lifecycle_boundary for job in jobs] == [6, 9]


def options_of(topics: TopicsConfig, kafka: RunningKafka, tmp_path: Path) -> list[str]:
    config = tmp_path / "gemstream.toml"
    config.write_text(
        f'[topics]\ninteractions = "{topics.interactions}"\ndead_letters = "{topics.dead_letters}"\n'
        f'compression_jobs = "{topics.compression_jobs}"\n'
    )
    return ["--config", str(config), "--bootstrap", kafka.bootstrap]
