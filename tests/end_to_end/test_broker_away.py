"""What ends while Kafka is away ends as always: in order, and without an error."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer

from services.local_kafka import RunningKafka, start_kafka
from stream.topic_reader import close_consumer
from stream.topics import TopicsConfig, ensure_topics
from tests.end_to_end.processes import Deployment, wait_for
from tests.end_to_end.test_trending import views

pytestmark = [pytest.mark.broker, pytest.mark.slow]
TOPICS = TopicsConfig(num_partitions=3)
WITHIN_S = 60.0
"""For what was sent, the producer waits 40 s."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningKafka]:
    """One that may be killed."""
    broker = start_kafka(tmp_path / "kafka")
    yield broker
    broker.stop()


class Heard(logging.Handler):
    """Notes that a fetch failed: it then waits to try again."""

    def __init__(self) -> None:
        super().__init__()
        self.event = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "Failed fetch" in record.getMessage():
            self.event.set()


async def test_a_consumer_is_closed_while_a_fetch_waits_to_try_again(broker: RunningKafka) -> None:
    await ensure_topics(broker.bootstrap, TOPICS)
    consumer = AIOKafkaConsumer(
        TOPICS.interactions, bootstrap_servers=broker.bootstrap, retry_backoff_ms=5_000
    )
    await consumer.start()
    await consumer.getmany(timeout_ms=100)
    heard, logger = Heard(), logging.getLogger("aiokafka.consumer.fetcher")
    logger.addHandler(heard)
    try:
        await asyncio.to_thread(broker.kill)
        async with asyncio.timeout(30):
            await heard.event.wait()
        await close_consumer(consumer)
    finally:
        logger.removeHandler(heard)


async def test_a_state_node_ends_without_an_error(broker: RunningKafka, tmp_path: Path) -> None:
    deployed = Deployment(tmp_path, broker.bootstrap, TOPICS, tmp_path / "no bundle")
    deployed.start("run", "state-node")
    try:
        await deployed.produce(views(7, 10))
        wait_for("the events in the state", lambda: deployed.applied() == 10)
        broker.kill()
        wait_for("its word", lambda: "Unable connect" in deployed.log.read_text())
        assert deployed.process is not None
        deployed.process.terminate()
        assert deployed.process.wait(WITHIN_S) == 0
    finally:
        if deployed.process is not None:
            deployed.process.kill()
            deployed.process.wait(10)
        print(deployed.log.read_text())
    assert "Traceback" not in deployed.log.read_text()
