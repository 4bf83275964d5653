"""While Kafka is away, what ends does so in order, and what answers goes on."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from services.local_kafka import RunningKafka, start_kafka
from stream.topics import TopicsConfig, ensure_topics
from tests.end_to_end.processes import Deployment, wait_for
from tests.end_to_end.test_trending import views

pytestmark = [pytest.mark.broker, pytest.mark.slow]
TOPICS = TopicsConfig(num_partitions=3)
WITHIN_S = 30.0
"""For what was sent, the producer waits 40 s."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningKafka]:
    """One that may be killed."""
    broker = start_kafka(tmp_path / "kafka")
    yield broker
    broker.stop()


async def test_a_state_node_ends_without_an_error(broker: RunningKafka, tmp_path: Path) -> None:
    await ensure_topics(broker.bootstrap, TOPICS)
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


async def test_an_inference_node_goes_on_answering(
    broker: RunningKafka, tmp_path: Path, bundle: Path
) -> None:
    """With the catalogue, the owners and what trends as they were."""
    await ensure_topics(broker.bootstrap, TOPICS)
    deployed = Deployment(tmp_path, broker.bootstrap, TOPICS, bundle)
    deployed.start("run", "inference-node")
    try:
        wait_for("an answer", lambda: answered(deployed))
        broker.kill()
        wait_for("its word", lambda: "cannot follow the catalogue" in deployed.log.read_text())
        assert len(deployed.recommend("stranger", k=5).items) == 5
        assert deployed.process is not None
        assert deployed.process.poll() is None
        deployed.stop()
    finally:
        if deployed.process is not None:
            deployed.process.kill()
            deployed.process.wait(10)
        print(deployed.log.read_text())
    assert "Traceback" not in deployed.log.read_text()


def misses_broker(deployed: Deployment) -> bool:
    """Where a commit was under way it failed; else the client says that nobody is there."""
    said = deployed.log.read_text()
    return any(word in said for word in ("not committed", "Unable to", "Unable connect"))


def answered(deployed: Deployment) -> bool:
    try:
        return len(deployed.recommend("stranger", k=5).items) == 5
    except grpc.RpcError:
        return False
