"""What ends while Kafka is away ends as always: in order, and without an error."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.local_kafka import RunningKafka, start_kafka
from stream.topics import TopicsConfig
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
