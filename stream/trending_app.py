"""The Faust app that counts what trends: a windowed table of counts, and each partition's heaviest items on a topic.

Faust passes on some thousand messages a second, so its consumer hands over what was fetched of a partition as one message,
and the table holds one value per partition and window. A value says up to which offset it is counted: what is delivered
again, after a kill, counts once.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faust

from state.errors import ConfigError
from stream.batch_consumer import consumer_of_batches
from stream.decode import Decoder, DecoderConfig, Record
from stream.errors import StreamError, TopicMismatch, WorkerCrashed
from stream.topics import METADATA_MAX_AGE_MS, describe_cluster
from stream.trending_counts import PartitionCounts, TrendingConfig, Window

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
_PUBLISH_ANYWAY_S = 30.0
"""Readers hear so often of a partition in which nothing happens."""
_NEVER_S = 10 * 365 * 86_400.0


@dataclass(frozen=True, kw_only=True)
class TrendingAppConfig:
    """Where events come from, and where what trends goes."""

    bootstrap: str
    data_dir: Path
    interactions: str = "interactions"
    counts: str = "trending-counts"
    """The changelog of the table; as many partitions as `interactions`."""
    trending: str = "trending"
    stall_after_s: float = 20.0
    """A partition that has events and is not counted for so long ends the app."""

    def __post_init__(self) -> None:
        """Raise ConfigError for empty names."""
        if not all((self.bootstrap, self.interactions, self.counts, self.trending)):
            raise ConfigError("bootstrap and the three topics need a value each")


class TrendingApp:
    """A member of the group that counts. Runs beside other work on the same event loop."""

    def __init__(
        self,
        config: TrendingAppConfig,
        counting: TrendingConfig,
        decoder: DecoderConfig,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`now_ms` is the clock that events grow old by."""
        self._config, self._counting, self._decoding = config, counting, decoder
        self._now_ms = now_ms
        self._app: Any = None
        self._table: Any = None
        self._trending: Any = None
        self._decoder: Decoder
        self._counts: dict[int, PartitionCounts] = {}
        """What the table holds, ready to be added to."""
        self._next_offsets: dict[int, int] = {}
        """Of each partition, what is counted, once something was."""
        self._reached: dict[int, int] = {}
        """The same some seconds ago, but behind what is no event."""
        self._stall = StallDetector(config.stall_after_s)
        self._published: dict[int, tuple[int, float]] = {}
        """Of each partition, the offset it was counted up to and when that was."""
        self._tasks: list[asyncio.Task[None]] = []
        self.counters: Counter[str] = Counter()

    async def start(self) -> None:
        """Join the group and begin. Raises BrokerUnavailable, and StreamError without the topics."""
        config = self._config
        partitions = (await describe_cluster(config.bootstrap)).partitions
        for topic in (config.interactions, config.counts, config.trending):
            if topic not in partitions:
                raise StreamError(
                    f"topic {topic!r} does not exist at {config.bootstrap}: "
                    "create it with stream.topics.ensure_topics before counting"
                )
        num_partitions = partitions[config.interactions]
        if partitions[config.counts] != num_partitions:
            raise TopicMismatch(
                f"topic {config.counts!r} has {partitions[config.counts]} partitions, {config.interactions!r} has "
                f"{num_partitions}: delete the former (it holds what was taken in the last hours), or name another one"
            )
        self._decoder = Decoder(self._decoding, num_partitions)
        self._app = app = _faust_app(config, self._counting.group, num_partitions)
        changelog = app.topic(config.counts, key_serializer="json", value_serializer="raw")
        self._table = faust.Table(
            app,
            name="counts",
            window=faust.TumblingWindow(self._counting.window_s),  # without an end: see `_count`
            value_type=bytes,
            changelog_topic=changelog,
            partitions=num_partitions,
        )
        app.tables.add(self._table)
        self._table.on_recover(self._read_table_or_crash)
        self._trending = app.topic(config.trending, key_serializer="raw", value_serializer="raw")
        events = app.topic(config.interactions, key_serializer="raw", value_serializer="raw")
        app.agent(events, name="count")(self._take)
        app.finalize()
        config.data_dir.mkdir(parents=True, exist_ok=True)  # Faust makes the last folder alone
        await app.start()
        self._tasks = [
            asyncio.create_task(self._publish_for_ever()),
            asyncio.create_task(self._watch_for_ever()),
        ]

    async def stop(self) -> None:
        """Finish the batch at hand, commit and leave the group."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._app is not None:
            await self._app.stop()

    @property
    def is_running(self) -> bool:
        """Whether it is a member of the group and its table is there."""
        return self._app is not None and self._app.started and bool(self._partitions())

    def lag_records(self) -> dict[int, int]:
        """Of each partition of ours, the events that are not counted yet; some seconds old."""
        return {
            partition: max(0, end - self._reached[partition])
            for partition, end in self._stall.ends.items()
            if partition in self._reached
        }

    async def wait(self) -> None:
        """Return after `stop`. Raises WorkerCrashed when Faust died: end the process then."""
        if self._app is None:
            return
        await self._app.wait_until_stopped()
        reason = self._app.crash_reason
        if reason is not None:
            raise WorkerCrashed(
                f"Faust crashed on {self._config.bootstrap}: {reason!r}"
            ) from reason

    def _partitions(self) -> set[int]:
        """Those that are ours and counted."""
        ours = self._app.assignor.assigned_actives()
        return {tp.partition for tp in ours if self._is_source(tp) and tp.partition in self._counts}

    async def _read_table_or_crash(self) -> None:
        """Faust would pass over an error."""
        try:
            self._read_table()
        except Exception as error:
            log.exception("the table of counts cannot be read")
            await self._app.crash(error)

    def _read_table(self) -> None:
        """After a rebalance, before the first event."""
        ours = {tp.partition for tp in self._app.assignor.assigned_actives()}
        self._counts = {partition: PartitionCounts(self._counting) for partition in ours}
        self._next_offsets.clear()
        self._published.clear()
        for (partition, (start_s, _)), value in list(self._table.items()):
            if partition in ours:
                try:
                    self._counts[partition].windows[round(start_s * 1_000)] = Window.decode(value)
                except StreamError as error:
                    log.warning("a window of partition %d is lost: %s", partition, error)

    async def _take(self, stream: Any) -> None:
        """Faust would restart an agent that fails, and commit all the same: a process that ends is better."""
        try:
            async for event in stream.events():
                await self._count(event.message.partition, event.value)
        except Exception as error:
            log.exception("counting failed")
            await self._app.crash(error)
            raise

    async def _count(self, partition: int, records: Sequence[Record]) -> None:
        counts = self._counts.get(partition)
        if counts is None:  # fetched before a rebalance took the partition away
            return
        decoded = self._decoder.decode(partition, records)
        arrivals, now_ms = decoded.arrivals, self._now_ms()
        next_offset = arrivals.position.next_offset
        changed = counts.add(arrivals, now_ms)
        for start_ms in changed:
            self._table[self._key(partition, start_ms)] = counts.windows[start_ms].encode()
        # Faust's own expiry keeps every write in memory until then, and leaves what it drops in the changelog.
        for start_ms in counts.expire(now_ms):
            key = self._key(partition, start_ms)
            if key in self._table:
                del self._table[key]
        await self._app.producer.flush()  # what is committed must be counted
        self._next_offsets[partition] = next_offset
        self.counters["events"] += len(arrivals.rows)
        self.counters["unreadable"] += len(decoded.rejected)

    def _key(self, partition: int, start_ms: int) -> tuple[int, tuple[float, float]]:
        return partition, self._table.window.current(start_ms / 1_000)

    async def _publish_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._counting.publish_interval_s)
            try:
                for partition in sorted(self._partitions()):
                    await self._publish(partition, time.monotonic())
            except Exception:  # a lost record is followed by another one
                log.exception("not published, will try again")

    async def _watch_for_ever(self) -> None:
        """Faust is known to stop without a word: in the recovery of a table, or after a rebalance."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            ours = {tp for tp in self._app.assignor.assigned_actives() if self._is_source(tp)}
            try:
                ends = await self._app.consumer.highwaters(*ours) if ours else {}
                self._reached = await self._ask_reached()
            except Exception as error:  # while the broker is away nothing can be said
                log.warning("cannot ask where the logs end: %r", error)
                continue
            known = {tp.partition: end for tp, end in ends.items() if end is not None}
            stalled = self._stall.look(known, self._reached, time.monotonic())
            if stalled:
                log.error("partitions %s have events, and nothing is counted", sorted(stalled))
                await self._app.crash(TimeoutError(f"nothing is counted in {sorted(stalled)}"))

    async def _ask_reached(self) -> dict[int, int]:
        """Where nothing is in hand, a transaction's marker behind the last event is passed, too."""
        consumer, reached = self._app.consumer, dict(self._next_offsets)
        if consumer.unacked:
            return reached
        with suppress(TimeoutError):  # a position may be long in coming
            async with asyncio.timeout(_LOOK_EVERY_S):
                for tp in self._app.assignor.assigned_actives():
                    if self._is_source(tp) and tp.partition in reached:
                        reached[tp.partition] = await consumer.position(tp)
        return reached

    def _is_source(self, tp: Any) -> bool:
        return bool(tp.topic == self._config.interactions)

    async def _publish(self, partition: int, now_s: float) -> None:
        """What trends in a partition, where there is news."""
        next_offset = self._next_offsets.get(partition, 0)
        before, at_s = self._published.get(partition, (-1, 0.0))
        if next_offset == before and now_s - at_s < _PUBLISH_ANYWAY_S:
            return
        record = self._counts[partition].trending(partition, self._now_ms())
        sent = await self._trending.send(
            key=str(partition).encode(), value=record.SerializeToString()
        )
        await asyncio.shield(sent)  # Faust stumbles over a message that is cancelled
        self._published[partition] = next_offset, now_s
        self.counters["published"] += 1


class StallDetector:
    """Finds partitions that have events, while nothing of them is counted. Pure."""

    def __init__(self, stall_after_s: float) -> None:
        """How long that may last."""
        self._stall_after_s = stall_after_s
        self._since: dict[int, tuple[int, float]] = {}
        """Of each partition, how far it was and since when; before anything is counted, as far as its log was then."""
        self.ends: dict[int, int] = {}
        """Where the logs of our partitions ended lately."""

    def look(
        self, ends: Mapping[int, int], next_offsets: Mapping[int, int], now_s: float
    ) -> set[int]:
        """Those that are stalled, given where logs end and up to where they are counted."""
        self.ends = dict(ends)
        since: dict[int, tuple[int, float]] = {}
        for partition, end in ends.items():
            reached, at_s = self._since.get(partition, (end, now_s))
            reached = next_offsets.get(partition, reached)
            same = self._since.get(partition, (-1, 0.0))[0] == reached
            since[partition] = (reached, at_s) if same and end > reached else (reached, now_s)
        self._since = since
        return {p for p, (_, at_s) in since.items() if now_s - at_s >= self._stall_after_s}


def _faust_app(config: TrendingAppConfig, group: str, num_partitions: int) -> Any:
    app: Any = faust.App(
        group,
        broker=f"kafka://{config.bootstrap}",
        store="memory://",
        datadir=str(config.data_dir),
        topic_partitions=num_partitions,
        topic_replication_factor=1,
        topic_allow_declare=False,
        topic_disable_leader=True,
        table_standby_replicas=0,  # what is read of the changelog after a loss is small
        web_enabled=False,
        consumer_auto_offset_reset="earliest",
        broker_session_timeout=6,  # so long a partition of a killed member waits
        broker_heartbeat_interval=1,
        consumer_metadata_max_age_ms=METADATA_MAX_AGE_MS,
        # `stall_after_s` judges; Faust's own judges the table's topic, too, and reports that no stream reads it.
        stream_processing_timeout=_NEVER_S,
    )
    app.transport.Consumer = consumer_of_batches(config.interactions)
    return app
