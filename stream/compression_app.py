"""The Faust app that takes compression jobs from Kafka in batches and hands them to a coroutine.

The only file that knows Faust. Jobs are hints: one that is lost, doubled or fails does no harm,
because its user's dirty mark stays at the owner, who dispatches again.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faust
from google.protobuf.message import DecodeError

from protos.compression_pb2 import CompressionJob
from state.errors import ConfigError
from stream.errors import StreamError, WorkerCrashed
from stream.topics import METADATA_MAX_AGE_MS, describe_cluster

log = logging.getLogger(__name__)

Compress = Callable[[Sequence[CompressionJob]], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class CompressionAppConfig:
    """Where the jobs come from and how many are taken at once."""

    bootstrap: str
    data_dir: Path
    group: str = "gemstream-compression"
    topic: str = "compression-jobs"
    max_batch: int = 64
    batch_within_s: float = 0.2
    bundle_version: str = ""
    """Of the bundle that compresses: jobs of another one's rollout are for its own workers."""
    only_rollout: bool = False
    """Jobs of no rollout are for others, too."""

    def __post_init__(self) -> None:
        """Raise ConfigError for empty names and sizes out of range."""
        if not (self.bootstrap and self.group and self.topic):
            raise ConfigError(
                f"bootstrap={self.bootstrap!r}, group={self.group!r}, topic={self.topic!r}: "
                "give each of them a value"
            )
        if self.max_batch < 1:
            raise ConfigError(f"max_batch is {self.max_batch}: at least 1")
        if self.batch_within_s <= 0:
            raise ConfigError(f"batch_within_s is {self.batch_within_s}: more than 0")

    def takes(self, job: CompressionJob) -> bool:
        """Whether a job is for this worker."""
        if not job.bundle_version:
            return not self.only_rollout
        return job.bundle_version == self.bundle_version


class CompressionApp:
    """A member of the compression group. Runs beside other work on the same event loop."""

    def __init__(self, config: CompressionAppConfig, compress: Compress) -> None:
        """Keep the coroutine that does the work; it sees each user at most once per call."""
        self._config = config
        self._compress = compress
        self._app: faust.App | None = None

    async def start(self) -> None:
        """Join the group and begin. Raises BrokerUnavailable, and StreamError without the topic."""
        config = self._config
        cluster = await describe_cluster(config.bootstrap)
        if config.topic not in cluster.partitions:
            raise StreamError(
                f"topic {config.topic!r} does not exist at {config.bootstrap}: "
                "create it with stream.topics.ensure_topics before starting workers"
            )
        config.data_dir.mkdir(parents=True, exist_ok=True)
        self._app = _faust_app(config, cluster.partitions[config.topic])
        jobs = self._app.topic(config.topic, key_serializer="raw", value_serializer="raw")
        self._app.agent(jobs, name="compress")(self._take_batches)
        self._app.finalize()
        await self._app.start()

    async def stop(self) -> None:
        """Finish the batch at hand, commit and leave the group."""
        if self._app is not None:
            await self._app.stop()

    @property
    def is_running(self) -> bool:
        """Whether it is a member of the group and takes jobs."""
        return self._app is not None and bool(self._app.started)

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

    async def _take_batches(self, stream: Any) -> None:
        config = self._config
        # Before take(): here the record's partition and offset are still at hand.
        stream.add_processor(_decode)
        async for batch in stream.take(config.max_batch, within=config.batch_within_s):
            newest = {(job.user_id, job.bundle_version): job for job in batch if job is not None}
            if newest:
                await self._compress_or_log(tuple(newest.values()))

    async def _compress_or_log(self, jobs: Sequence[CompressionJob]) -> None:
        """An exception must not reach the agent: Faust would restart it and commit all the same."""
        try:
            await self._compress(jobs)
        except Exception:
            log.exception("compressing %d users failed; their owner will ask again", len(jobs))


def _decode(value: bytes | None) -> CompressionJob | None:
    """The job in the current record, or None and a line in the log."""
    reason = "it names no user"
    try:
        job = CompressionJob.FromString(value or b"")
        if job.user_id:
            return job
    except DecodeError as error:
        reason = str(error)
    event = faust.current_event()
    message = event.message if event is not None else None
    log.warning(
        "skipped the record at %s, partition %s, offset %s: %s",
        *(getattr(message, name, "?") for name in ("topic", "partition", "offset")),
        reason,
    )
    return None


def _faust_app(config: CompressionAppConfig, num_partitions: int) -> faust.App:
    return faust.App(
        config.group,
        broker=f"kafka://{config.bootstrap}",
        store="memory://",
        datadir=str(config.data_dir),
        topic_partitions=num_partitions,
        topic_replication_factor=1,
        topic_allow_declare=False,
        topic_disable_leader=True,
        web_enabled=False,
        consumer_auto_offset_reset="earliest",
        broker_session_timeout=10,
        broker_heartbeat_interval=1,
        consumer_metadata_max_age_ms=METADATA_MAX_AGE_MS,
    )
