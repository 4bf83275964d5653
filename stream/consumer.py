"""The state node's Kafka consumer: group membership, positions from the stores, and a stop at every rebalance."""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError

from state.errors import ConfigError, StateError
from state.partition_stores import PartitionStores
from state.user_store import UserStore
from stream.errors import (
    BrokerUnavailable,
    LeaseExpired,
    OffsetUnreachable,
    StreamError,
    TopicMismatch,
)
from stream.lease import Lease
from stream.phases import Phase, Phases
from stream.progress import Progress
from stream.start_offset import find_start
from stream.topic_reader import close_consumer
from stream.topics import METADATA_MAX_AGE_MS

log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

_COMMIT_TIMEOUT_S = 5.0
_CLOSE_WITHIN_S = 10.0


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig:
    """How a state node reads the interactions topic."""

    group: str = "gemstream-state"
    member_id: str | None = None
    """Static membership: a member back within its session timeout gets its partitions without a rebalance.

    A state node uses the identity kept in its data directory when none is given.
    """
    max_poll_records: int = 20_000
    poll_timeout_ms: int = 200
    session_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 1_000
    accept_hole: bool = False
    """Where retention removed records that were never applied: go on behind them and record the hole, not stop."""

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


@dataclass(frozen=True)
class Poll:
    """New records by partition, read under one assignment."""

    generation: int
    records: Mapping[int, Sequence[ConsumerRecord]] = field(default_factory=dict)
    positions: Mapping[int, int] = field(default_factory=dict)
    """Where the reading stands behind these records; past a transaction's marker, which is no record."""


class InteractionConsumer(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka's base is untyped
    """Reads the partitions the group gives this member, each from the offset that its store holds.

    An assigned partition is paused until its store is open, which may take a restore; then it is sought. Nothing that
    was read before the seek is given out, as it may lie beyond what the store has seen. The reading begins one record
    before the stored offset, so that ingest can see that the topic is still the same. `processing` is held while a poll
    is applied; a rebalance waits for it, so no poll is cut in two by the loss of its partition. It is never held across
    a poll.
    """

    def __init__(
        self, bootstrap: str, topic: str, config: ConsumerConfig, stores: PartitionStores
    ) -> None:
        """`stores` are opened and closed as partitions come and go."""
        self._topic = topic
        self._config = config
        self._bootstrap = bootstrap
        self._stores = stores
        self._failure: StreamError | StateError | None = None
        self._generation = 0
        self._starts: dict[int, int] = {}
        """The partitions that were sought, and where to; only these are read."""
        self._opening: set[asyncio.Task[None]] = set()
        self._lease = Lease(config.session_timeout_ms / 1_000)
        self._consumer: AIOKafkaConsumer | None = None
        self._stopping = asyncio.Event()
        self.processing = asyncio.Lock()
        self.phases = Phases()
        self.progress = Progress()

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
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
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
        """Leave the group; idempotent. What is opening ends first: the client would not let go of a question."""
        self._stopping.set()
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            try:
                async with asyncio.timeout(_CLOSE_WITHIN_S):
                    await close_consumer(consumer)
            except TimeoutError:  # it waits for an answer of the broker
                log.warning("the group is left without a word: the broker does not answer")
                await consumer._client.close()
        await asyncio.gather(*self._opening)

    async def poll(self) -> Poll:
        """New records, possibly none. Raises StreamError or StateError when reading cannot go on."""
        if self._failure is not None:
            raise self._failure
        if self._running.partitions_for_topic(self._topic) is None:
            raise TopicMismatch(
                f"topic {self._topic!r} is gone from Kafka at {self._bootstrap}; make it again and start from a new "
                "data directory (and another checkpoints.uri)"
            )
        polled = await self._fetched()
        # What comes out of a fetch belongs to the assignment at that moment, even if the waiting began before it.
        generation = self._generation
        records = {
            where.partition: records
            for where, records in polled.items()
            if records and where.partition in self._starts
        }
        return Poll(generation, records, await self._reading_positions())

    async def _fetched(self) -> dict[TopicPartition, list[ConsumerRecord]]:
        try:
            fetched: dict[TopicPartition, list[ConsumerRecord]] = await self._running.getmany(
                timeout_ms=self._config.poll_timeout_ms
            )
        except NoOffsetForPartitionError:
            return {}  # seen before the seek to the stored offset, which is all that counts
        except OffsetOutOfRangeError as error:
            if not any(where.partition in self._starts for where in error.args[0]):
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
        return fetched

    async def _reading_positions(self) -> dict[int, int]:
        return {
            partition: await self._running.position(TopicPartition(self._topic, partition))
            for partition in self._starts.keys() & self.assigned()
        }

    def assigned(self) -> set[int]:
        """The partitions this member owns now."""
        if self._consumer is None:
            return set()
        return {where.partition for where in self._consumer.assignment()}

    async def ask_end_offsets(self) -> dict[int, int]:
        """Where the log of each assigned partition ends now, before the first open transaction. Raises StreamError.

        During a rebalance those of the last assignment.
        """
        asked = [TopicPartition(self._topic, number) for number in self.progress.partitions()]
        try:
            ends = await self._running.end_offsets(asked)
        except KafkaError as error:
            raise StreamError(f"the ends of {self._topic!r} are not known: {error!r}") from error
        return {where.partition: offset for where, offset in ends.items()}

    async def holds(self, poll: Poll) -> bool:
        """Whether the partitions of `poll` are still this member's, as far as the coordinator confirmed lately.

        Where the last confirmation is too old, one is asked for; false also means "not known now".
        """
        if poll.generation == self._generation and self._lease.remaining_s() <= 0:
            await self.renew()
        return poll.generation == self._generation and self._lease.remaining_s() > 0

    def is_current(self, poll: Poll) -> bool:
        """Whether no rebalance began since `poll`; after one, its records are read again by whoever owns them."""
        return poll.generation == self._generation

    def check_lease(self) -> None:
        """Raises LeaseExpired when the partitions may be another member's by now. To be called just before a write."""
        if self._lease.remaining_s() <= 0:
            raise LeaseExpired("the group's coordinator has not confirmed this member for too long")

    def served(self) -> set[int]:
        """The partitions that this member owns, and has caught up with."""
        return self.assigned() & self.phases.in_phase(Phase.READY)

    def check_served(self, partition: int) -> None:
        """Raises LeaseExpired unless `partition` is served, and surely this member's still."""
        if partition not in self.served():
            raise LeaseExpired(f"partition {partition} is not served by this node now")
        self.check_lease()

    async def renew(self) -> None:
        """Ask the coordinator to confirm this member, if that was some time ago."""
        if self._starts and self._lease.is_due():
            await self.commit(await self._stored_offsets())

    async def _stored_offsets(self) -> dict[int, int]:
        offsets = {}
        for partition in sorted(self._starts):
            position = await asyncio.to_thread(self._stores.get(partition).position)
            offsets[partition] = position.next_offset if position else self._starts[partition]
        return offsets

    async def commit(self, next_offsets: Mapping[int, int]) -> None:
        """Tell the group how far we are: a hint for people and lag monitors, and a question whether we belong to it.

        A failure is logged; the stores keep the true offsets.
        """
        offsets = {
            TopicPartition(self._topic, partition): offset
            for partition, offset in next_offsets.items()
        }
        asked_at_s = self._lease.now_s()
        generation = self._generation
        try:
            async with asyncio.timeout(_COMMIT_TIMEOUT_S):
                await self._running.commit(offsets)
        except (KafkaError, TimeoutError) as error:
            log.warning(
                "offsets not committed (the store keeps the true ones): %s", type(error).__name__
            )
            return
        if generation == self._generation:
            self._lease.renew(asked_at_s)

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Wait until the poll in hand is applied whole, or given up."""
        self._generation += 1
        self._lease.drop()
        async with self.processing:
            self._starts.clear()
            self.progress.revoked()
            log.info("partitions revoked: %s", sorted(where.partition for where in revoked))

    async def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        """Close what went elsewhere, and begin to open what came. Heartbeats wait for this, so it must be short."""
        partitions = sorted(where.partition for where in assigned)
        log.info("partitions assigned: %s", partitions)
        self._generation += 1
        self._lease.renew(self._lease.now_s())
        self.phases.assign(partitions)
        self.progress.assigned(partitions)
        for partition in set(self._stores.partitions()) - set(partitions):
            await asyncio.to_thread(self._stores.close, partition)
        try:
            if assigned:
                self._running.pause(*assigned)
                begins = await self._running.beginning_offsets(assigned)
                ends = await self._running.end_offsets(assigned)
                for where in assigned:
                    self._running.seek(where, begins[where])
                task = asyncio.create_task(self._open(self._generation, begins, ends))
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)
        except KafkaError as error:
            self._failure = StreamError(f"cannot find the offsets of {self._topic!r}: {error!r}")

    async def _open(
        self,
        generation: int,
        begins: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> None:
        """Open the stores and begin to read, one partition after the other."""
        try:
            for where in sorted(begins):
                store = await asyncio.to_thread(self._stores.open, where.partition)
                if generation != self._generation:
                    break
                span = range(begins[where], ends[where] + 1)
                committed = await self._unless_stopping(self._running.committed(where))
                start = await asyncio.to_thread(
                    find_start,
                    store,
                    where.topic,
                    span,
                    committed,
                    accept_hole=self._config.accept_hole,
                )
                position = await asyncio.to_thread(_next_offset, store)
                if generation != self._generation:
                    break
                self._running.seek(where, start)
                self._running.resume(where)
                self._starts[where.partition] = start
                self.phases.opened(where.partition, ends[where])
                self.progress.opened(where.partition, max(start, position))
        except (StreamError, StateError) as error:
            self._failure = error
        for partition in set(self._stores.partitions()) - self.assigned():
            await asyncio.to_thread(self._stores.close, partition)

    async def _unless_stopping(self, asking: Coroutine[None, None, _Answer]) -> _Answer:
        """The client asks again and again, even once it is closed. Raises StreamError when this consumer stops."""
        task = asyncio.ensure_future(asking)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise StreamError("the consumer stops")
            return task.result()
        finally:
            task.cancel()
            stopping.cancel()

    @property
    def _running(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            raise StreamError("the consumer is not started")
        return self._consumer


def _next_offset(store: UserStore) -> int:
    position = store.position()
    return position.next_offset if position else 0
