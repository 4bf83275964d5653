"""One real broker for each process of the session, and topics of its own for each test."""

import os
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import settings

from services.errors import LocalKafkaError
from services.local_kafka import RunningKafka, start_kafka
from stream.topics import TopicsConfig, ensure_topics

# Inherited by every process that a test starts. Tests run beside each other: a thread per core each is too many.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("PYTHONFAULTHANDLER", "1")

settings.register_profile("busy", deadline=None)  # speed is measured in bench/ alone
settings.load_profile("busy")


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKafka]:
    """A broker shared by the session. Do not stop it: fault tests start their own."""
    try:
        broker = start_kafka(tmp_path_factory.mktemp("kafka"))
    except LocalKafkaError as error:
        pytest.fail(f"the broker for the tests did not start: {error}", pytrace=False)
    yield broker
    broker.stop()


@pytest.fixture
async def topics(kafka: RunningKafka) -> TopicsConfig:
    """Topics of three partitions that no other test uses."""
    unique = uuid.uuid4().hex[:12]
    config = TopicsConfig(
        interactions=f"interactions-{unique}",
        dead_letters=f"interactions.dead-letters-{unique}",
        compression_jobs=f"compression-jobs-{unique}",
        owners=f"partition-owners-{unique}",
        items=f"items-{unique}",
        trending=f"trending-{unique}",
        trending_counts=f"trending-counts-{unique}",
        num_partitions=3,
    )
    await ensure_topics(kafka.bootstrap, config)
    return config
