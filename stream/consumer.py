"""The state node's Kafka consumer: group membership, positions from the store, and a stop at every rebalance."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError

from state.arrivals import Position
from state.errors import ConfigError
from stream.errors import BrokerUnavailable, OffsetUnreachable, StreamError, TopicMismatch

log = logging.getLogger(__name__)

_COMMIT_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig:
    """How a state node reads the interactions topic."""

    group: str = "gemstream-state"
    member_id: str | None = None
    """Static membership: a member back within its session timeout gets its partitions without a rebalance.

    A state node uses the identity kept in its data directory when none is given.
    """
    max_poll_records: int = 5_000
    poll_timeout_ms: int = 200
    session_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 1_000

    def __post_init__(self) -> None:
        """Check the limits."""
        if not 1 <= self.max_poll_records <= 100_000:
            raise ConfigError(
                f"max_poll_records is {self.max_poll_records}; it must be 1 to 100000"
            )
        if self.session_timeout_ms < 3 * self.heartbeat_interval_ms:
            raise ConfigError(
                f"session_timeout_ms is {self.session_timeout_ms}; it must be at least three times "
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms})"
            )


class InteractionConsumer(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka's base is untyped
    """Reads the partitions the group gives this member, each from the offset that its store holds.

    The reading begins one record before that offset, so that ingest can see that the topic is still the same.

    Until a partition is sought, aiokafka may read it from the group's committed offset; `_positioned` keeps such
    records out, as they may lie beyond what the store has seen. `processing` is held while a poll is applied; a
    rebalance waits for it, so no poll is cut in two by the loss of its partition. It is never held across a poll.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        config: ConsumerConfig,
        stored_position: Callable[[int], Position | None],
    ) -> None:
        """`stored_position` tells how far a partition was applied, None for one never seen."""
        self._topic = topic
        self._config = config
        self._bootstrap = bootstrap
        self._stored_position = stored_position
        self._failure: StreamError | None = None
        self._positioned: set[int] = set()
        self._consumer: AIOKafkaConsumer | None = None
        self.processing = asyncio.Lock()

    async def start(self) -> None:
        """Join the group. Raises BrokerUnavailable."""
        config = self._config
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=config.group,
            group_instance_id=config.member_id,
            auto_offset_reset="none",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=config.session_timeout_ms,
            heartbeat_interval_ms=config.heartbeat_interval_ms,
            max_poll_records=config.max_poll_records,
        )
        self._consumer.subscribe([self._topic], listener=self)
        try:
            await self._consumer.start()
        except (KafkaError, OSError) as error:
            await self.stop()
            raise BrokerUnavailable(
                f"cannot read from Kafka at {self._bootstrap}: {error}"
            ) from error

    async def stop(self) -> None:
        """Leave the group; idempotent."""
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await consumer.stop()

    async def poll(self) -> dict[int, list[ConsumerRecord]]:
        """New records by partition, possibly none. Raises StreamError when reading cannot go on."""
        if self._failure is not None:
            raise self._failure
        if self._running.partitions_for_topic(self._topic) is None:
            raise TopicMismatch(
                f"topic {self._topic!r} is gone from Kafka at {self._bootstrap}; make it again and start from a new "
                "data directory"
            )
        try:
            polled = await self._running.getmany(timeout_ms=self._config.poll_timeout_ms)
        except NoOffsetForPartitionError:
            return {}  # seen before the seek to the stored offset, which is all that counts
        except OffsetOutOfRangeError as error:
            if not any(where.partition in self._positioned for where in error.args[0]):
                return {}
            raise OffsetUnreachable(
                f"retention of {self._topic!r} overtook this node while it was reading: {error}"
            ) from error
        except KafkaError as error:
            raise StreamError(f"reading {self._topic!r} failed: {error!r}") from error
        except UnicodeDecodeError as error:
            raise StreamError(
                f"a record in {self._topic!r} has a header whose name is not UTF-8, which the Kafka client cannot "
                f"read ({error}); delete the records up to it with kafka-delete-records"
            ) from error
        return {
            where.partition: records
            for where, records in polled.items()
            if records and where.partition in self._positioned
        }

    def assigned(self) -> set[int]:
        """The partitions this member owns now."""
        if self._consumer is None:
            return set()
        return {where.partition for where in self._consumer.assignment()}

    def end_offset(self, partition: int) -> int | None:
        """End of a partition as of the last fetch; None before the first."""
        if partition not in self.assigned():
            return None
        highwater: int | None = self._running.highwater(TopicPartition(self._topic, partition))
        return highwater

    async def commit(self, next_offsets: Mapping[int, int]) -> None:
        """Tell the group how far we are. Only a hint for people and lag monitors, so a failure is logged."""
        offsets = {
            TopicPartition(self._topic, partition): offset
            for partition, offset in next_offsets.items()
        }
        try:
            async with asyncio.timeout(_COMMIT_TIMEOUT_S):
                await self._running.commit(offsets)
        except (KafkaError, TimeoutError) as error:
            log.warning("offsets not committed (the store keeps the true ones): %r", error)

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Wait until the poll in hand is applied whole."""
        async with self.processing:
            self._positioned.clear()
            log.info("partitions revoked: %s", sorted(where.partition for where in revoked))

    async def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        """Seek every partition to its stored offset."""
        log.info("partitions assigned: %s", sorted(where.partition for where in assigned))
        try:
            await self._seek_to_stored(list(assigned))
        except StreamError as error:
            self._failure = error
        except KafkaError as error:
            self._failure = StreamError(f"cannot find the offsets of {self._topic!r}: {error!r}")

    async def _seek_to_stored(self, assigned: list[TopicPartition]) -> None:
        if not assigned:
            return
        beginnings = await self._running.beginning_offsets(assigned)
        ends = await self._running.end_offsets(assigned)
        for where in assigned:
            position = self._stored_position(where.partition)
            begin, end = beginnings[where], ends[where]
            stored = begin if position is None else position.next_offset
            if not begin <= stored <= end:
                raise OffsetUnreachable(_explain_unreachable(where, stored, begin, end))
            self._running.seek(where, max(begin, stored - 1))
            self._positioned.add(where.partition)

    @property
    def _running(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            raise StreamError("the consumer is not started")
        return self._consumer


def _explain_unreachable(where: TopicPartition, stored: int, begin: int, end: int) -> str:
    name = f"{where.topic}-{where.partition}"
    if stored < begin:
        return (
            f"{name}: the store needs offset {stored}, but the topic now begins at {begin}: retention removed "
            f"{begin - stored} records that were never applied. Raise the topic's retention, then start from a new "
            "data directory"
        )
    return (
        f"{name}: the store is at offset {stored}, but the topic ends at {end}: it was made anew, or this is another "
        "cluster. Point to the right Kafka, or start from a new data directory"
    )
