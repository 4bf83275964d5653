"""Topics on a real broker, and the partitioner against where aiokafka really puts records."""

import socket

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from services.local_kafka import RunningKafka
from state.errors import ConfigError
from stream.errors import BrokerUnavailable, StreamError, TopicMismatch
from stream.topics import TopicsConfig, describe_cluster, ensure_topics, partition_of

pytestmark = pytest.mark.broker


async def test_made_once_and_left_alone(kafka: RunningKafka, topics: TopicsConfig) -> None:
    first = await describe_cluster(kafka.bootstrap)
    again = await ensure_topics(kafka.bootstrap, topics)
    assert again == first
    assert again.nodes == (kafka.bootstrap,)
    for name in (topics.interactions, topics.dead_letters, topics.compression_jobs):
        assert again.partitions[name] == topics.num_partitions


async def test_one_that_is_missing_is_added(kafka: RunningKafka, topics: TopicsConfig) -> None:
    other = TopicsConfig(
        interactions=topics.interactions,
        dead_letters=f"{topics.dead_letters}-other",
        compression_jobs=topics.compression_jobs,
        num_partitions=topics.num_partitions,
    )
    cluster = await ensure_topics(kafka.bootstrap, other)
    assert cluster.partitions[other.dead_letters] == topics.num_partitions


async def test_interactions_carry_arrival_time_and_stay(
    kafka: RunningKafka, topics: TopicsConfig
) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        resource = ConfigResource(ConfigResourceType.TOPIC, topics.interactions)
        (answer,) = await admin.describe_configs([resource])
    finally:
        await admin.close()
    settings = {entry[0]: entry[1] for entry in answer.resources[0][4]}
    assert settings["message.timestamp.type"] == "LogAppendTime"
    assert settings["retention.ms"] == "-1"


async def test_another_number_of_partitions(kafka: RunningKafka, topics: TopicsConfig) -> None:
    wrong = TopicsConfig(
        interactions=topics.interactions,
        dead_letters=topics.dead_letters,
        compression_jobs=topics.compression_jobs,
        num_partitions=topics.num_partitions + 1,
    )
    with pytest.raises(TopicMismatch, match="has 3 partitions, the configuration says 4"):
        await ensure_topics(kafka.bootstrap, wrong)


async def test_what_the_broker_refuses_is_an_error(kafka: RunningKafka) -> None:
    with pytest.raises(StreamError, match="InvalidReplicationFactor"):
        await ensure_topics(
            kafka.bootstrap, TopicsConfig(interactions="refused", replication_factor=3)
        )


async def test_nobody_answers() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets the port
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(BrokerUnavailable, match=nobody):
            await ensure_topics(nobody, TopicsConfig(), deadline_s=0.5)


async def test_partition_is_where_the_producer_puts_it(
    kafka: RunningKafka, topics: TopicsConfig
) -> None:
    users = ["", "a", "ab", "abc", "abcd", "Zoë", "用户", *(f"user-{n}" for n in range(200))]
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap)
    await producer.start()
    try:
        for user in users:
            sent = await producer.send_and_wait(topics.interactions, b"", key=user.encode())
            assert sent.partition == partition_of(user, topics.num_partitions), user
    finally:
        await producer.stop()


def test_partition_of_known_java_hashes() -> None:
    # org.apache.kafka.common.utils.UtilsTest: murmur2("21") = -973932308, ("foobar") = -790332482
    assert partition_of("21", 1000) == (-973932308 & 0x7FFFFFFF) % 1000
    assert partition_of("foobar", 1000) == (-790332482 & 0x7FFFFFFF) % 1000


@pytest.mark.parametrize(
    "settings",
    [
        {"num_partitions": 0},
        {"num_partitions": 1025},
        {"replication_factor": 0},
        {"interactions": ""},
        {"dead_letters": "interactions"},
    ],
)
def test_settings_out_of_range(settings: dict[str, int | str]) -> None:
    with pytest.raises(ConfigError):
        TopicsConfig(**settings)  # type: ignore[arg-type]
