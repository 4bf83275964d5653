"""The topics: their names, partitions and settings, how they are made, and which one a user's events go to."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code
from aiokafka.partitioner import murmur2

from state.errors import ConfigError
from stream.closing import close
from stream.errors import BrokerUnavailable, StreamError, TopicMismatch

MAX_PARTITIONS = 1024
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
KEEP_FOREVER = "-1"
RETRY_EVERY_S = 0.2
REQUEST_TIMEOUT_MS = 10_000
METADATA_MAX_AGE_MS = 10_000
"""Of members of groups: a broker that has just started may not name a topic yet, and whose leader does not see it gives it
to nobody until it looks again."""

INTERACTIONS_SETTINGS = MappingProxyType(
    {"message.timestamp.type": "LogAppendTime", "retention.ms": KEEP_FOREVER}
)
OWNERS_SETTINGS = MappingProxyType({"cleanup.policy": "compact"})
ITEMS_SETTINGS = MappingProxyType(
    # Tombstones stay for a hundred years: an item of the bundle that was removed would come back without.
    {"cleanup.policy": "compact", "delete.retention.ms": str(100 * 365 * 86_400_000)}
)
_QUICKLY_COMPACTED = {"segment.bytes": str(8 << 20), "min.cleanable.dirty.ratio": "0.1"}
TRENDING_SETTINGS = MappingProxyType({"cleanup.policy": "compact", **_QUICKLY_COMPACTED})
TRENDING_COUNTS_SETTINGS = MappingProxyType(
    # Values are written again and again, and of no use once they are older than may be counted.
    {
        "cleanup.policy": "compact,delete",
        "retention.ms": str(31 * 86_400_000),
        **_QUICKLY_COMPACTED,
    }
)
DEAD_LETTERS_SETTINGS = MappingProxyType(
    # Room for whatever another topic lets through, and for the headers that say why it is here.
    {"retention.ms": KEEP_FOREVER, "max.message.bytes": str(16 << 20)}
)


@dataclass(frozen=True, kw_only=True)
class TopicsConfig:
    """Names and sizes of the topics. Producers and owners must agree on `num_partitions`."""

    interactions: str = "interactions"
    dead_letters: str = "interactions.dead-letters"
    compression_jobs: str = "compression-jobs"
    owners: str = "partition-owners"
    """Compacted, of one partition: where the users of each partition are served."""
    items: str = "items"
    """Compacted, of one partition: what may be recommended beside the bundle's own items, and what no longer."""
    trending: str = "trending"
    """Compacted, of one partition: the heaviest items of each partition."""
    trending_counts: str = "trending-counts"
    """Compacted: what is counted in each partition."""
    num_partitions: int = 8
    replication_factor: int = 1

    def __post_init__(self) -> None:
        """Raise ConfigError for empty or repeated names and sizes out of range."""
        names = (
            self.interactions,
            self.dead_letters,
            self.compression_jobs,
            self.owners,
            self.items,
            self.trending,
            self.trending_counts,
        )
        if not all(map(_TOPIC_NAME.fullmatch, names)) or len(set(names)) != len(names):
            raise ConfigError(
                f"topic names are {names}: give each topic a name of its own, of at most 249 letters, digits, dots, "
                "underscores and hyphens"
            )
        if not 1 <= self.num_partitions <= MAX_PARTITIONS:
            raise ConfigError(
                f"num_partitions is {self.num_partitions}: choose between 1 and {MAX_PARTITIONS}"
            )
        if self.replication_factor < 1:
            raise ConfigError(f"replication_factor is {self.replication_factor}: at least 1")

    def new_topics(self) -> tuple[NewTopic, ...]:
        """Every topic as the admin client wants it."""
        topics = {
            self.interactions: (self.num_partitions, dict(INTERACTIONS_SETTINGS)),
            self.dead_letters: (self.num_partitions, dict(DEAD_LETTERS_SETTINGS)),
            self.compression_jobs: (self.num_partitions, {}),
            self.owners: (1, dict(OWNERS_SETTINGS)),
            self.items: (1, dict(ITEMS_SETTINGS)),
            self.trending: (1, dict(TRENDING_SETTINGS)),
            self.trending_counts: (self.num_partitions, dict(TRENDING_COUNTS_SETTINGS)),
        }
        return tuple(
            NewTopic(name, num_partitions, self.replication_factor, topic_configs=settings)
            for name, (num_partitions, settings) in topics.items()
        )


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What a metadata request tells: who answers, and the partitions of each topic by name."""

    cluster_id: str
    nodes: tuple[str, ...]
    partitions: dict[str, int]


def partition_of(user_id: str, num_partitions: int) -> int:
    """The partition of a user's events: murmur2 of the key, as in the Java client and aiokafka."""
    return int(murmur2(user_id.encode()) & 0x7FFFFFFF) % num_partitions


async def describe_cluster(bootstrap: str) -> Cluster:
    """Ask the broker once. Raises BrokerUnavailable."""
    async with _admin(bootstrap) as admin:
        return await _describe(admin)


async def ensure_topics(
    bootstrap: str, config: TopicsConfig, *, deadline_s: float = 30.0
) -> Cluster:
    """Create what is missing and wait until the broker shows it; topics that exist stay as they are.

    A broker that is still coming up is tried again until the deadline. Raises BrokerUnavailable
    after it, TopicMismatch when `interactions` has another number of partitions, and StreamError
    when the broker refuses to create a topic.
    """
    give_up_at = time.monotonic() + deadline_s
    while True:
        try:
            return await _create_missing(bootstrap, config)
        except BrokerUnavailable:
            if time.monotonic() >= give_up_at:
                raise
            await asyncio.sleep(RETRY_EVERY_S)


async def _create_missing(bootstrap: str, config: TopicsConfig) -> Cluster:
    async with _admin(bootstrap) as admin:
        known = (await _describe(admin)).partitions
        missing = [topic for topic in config.new_topics() if topic.name not in known]
        if missing:
            _check_created((await admin.create_topics(missing)).topic_errors)
        cluster = await _describe(admin)
    absent = [topic.name for topic in missing if topic.name not in cluster.partitions]
    if absent:
        raise BrokerUnavailable(f"{bootstrap} does not show the new topics {absent} yet")
    found = cluster.partitions[config.interactions]
    if found != config.num_partitions:
        raise TopicMismatch(
            f"topic {config.interactions!r} at {bootstrap} has {found} partitions, the "
            f"configuration says {config.num_partitions}: set num_partitions={found}, or use "
            "another topic (users would move to other partitions)"
        )
    return cluster


def _check_created(topic_errors: list[tuple[str | int | None, ...]]) -> None:
    for name, code, *message in topic_errors:
        error = for_code(code)
        if code == 0 or error is TopicAlreadyExistsError:
            continue
        detail = f"topic {name!r} was not created: {error.__name__} ({code}) {message}"
        raise BrokerUnavailable(detail) if error.retriable else StreamError(detail)


async def _describe(admin: AIOKafkaAdminClient) -> Cluster:
    about = await admin.describe_cluster()
    topics = await admin.describe_topics()
    return Cluster(
        cluster_id=about["cluster_id"],
        nodes=tuple(f"{node['host']}:{node['port']}" for node in about["brokers"]),
        # A topic whose partitions have no leader yet carries an error code: not there yet.
        partitions={
            topic["topic"]: len(topic["partitions"])
            for topic in topics
            if topic["error_code"] == 0
            and all(partition["error_code"] == 0 for partition in topic["partitions"])
        },
    )


@asynccontextmanager
async def _admin(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS)
    try:
        await admin.start()
        yield admin
    except (KafkaError, TimeoutError) as error:
        unavailable = isinstance(error, TimeoutError) or error.retriable
        reason = str(error) or type(error).__name__
        raise (BrokerUnavailable if unavailable else StreamError)(
            f"the broker at {bootstrap} did not answer as it should: {reason}"
        ) from error
    finally:
        await close(admin.close())
