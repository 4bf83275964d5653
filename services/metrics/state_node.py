"""Metrics of a state node."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields

from prometheus_client.core import (
    Metric,
)
from prometheus_client.registry import Collector

from services.metrics.families import (
    labels_of,
    metric_counter,
    metric_counters,
    metric_gauge,
    metric_histogram,
)
from state.backfill_batch import Taken
from state.errors import StateError
from state.key_value_store import StoreFigures
from state.partition_stores import PartitionStores
from stream.ingest import PollHistograms
from stream.owed_summaries import Backlog
from stream.phases import Phase
from stream.progress import Progress
from stream.watchdog import Verdict

log = logging.getLogger(__name__)


INGEST_COUNTERS = {
    "interactions": "Interactions applied to user states.",
    "duplicates": "Interactions that were in the state already.",
    "late": "Interactions older than their user's newest sealed one.",
    "future": "Event times too far ahead of the record's timestamp, set back to it.",
    "refused": "Interactions of a past that their user had deleted.",
    "replayed": "Interactions at offsets that the store had applied before.",
    "deletions": "Deletions of users, and requests to forget an item.",
    "forgotten": "Interactions that a request to forget an item took away.",
    "dead_letters": "Records that could not be read, written to the dead-letter topic.",
    "quarantined": "Records of quarantined users, written to the dead-letter topic.",
    "folds": "Users in a poll whose arrivals were not simply newer, so that their history was folded.",
    "sealed_chunks": "Chunks that left the tail.",
    "evicted_chunks": "Chunks that left the history because of max_history.",
    "boundary_moves": "Users in a poll whose lifecycle boundary moved.",
}


_POLL_HISTOGRAMS = {
    "records": ("poll_records", "Records in a poll that brought something new."),
    "decode_s": ("decode_seconds", "Seconds to decode a poll."),
    "write_s": ("write_seconds", "Seconds to fold a poll and write its batches."),
    "flush_s": ("flush_seconds", "Seconds until a poll survives a loss of power."),
    "commit_s": ("commit_seconds", "Seconds to commit a poll's offsets to the group."),
}


_PROGRESS_GAUGES = {
    "next_offset": ("next_offset", "The first offset not applied yet."),
    "end_offset": ("end_offset", "Where the log ends now; absent while the broker does not say."),
    "lag_records": ("lag_records", "Offsets not applied yet; absent while not known."),
    "lag_s": (
        "lag_seconds",
        "How long the oldest record not applied has waited at most; absent while not known.",
    ),
}


_STORE_GAUGES = {
    "disk_bytes": ("bytes", "Bytes of files."),
    "memtable_bytes": ("memtable_bytes", "Bytes in memtables."),
    "pending_compaction_bytes": (
        "pending_compaction_bytes",
        "Bytes that compactions are behind by, estimated.",
    ),
    "keys": ("keys", "Keys, estimated; a user has several."),
}


_BACKLOG_GAUGES = {
    "users": ("dirty_users", "Users owed a summary."),
    "resting": ("dirty_resting_users", "Users of these that failed too often."),
    "oldest_s": (
        "dirty_oldest_seconds",
        "How long the oldest mark has waited since this process first saw it.",
    ),
}


_JOB_COUNTERS = {
    "sent": ("compression_jobs_sent", "Jobs put into their topic."),
    "resent": ("compression_jobs_resent", "Jobs of these for users that had one without success."),
    "poisoned": ("compression_poisoned_users", "Users that failed too often, now dead letters."),
}


_BACKFILL_COUNTERS = {
    "users": "Users whose records a backfill changed.",
    "interactions": "Interactions of backfills that were not live.",
    "repetitions": "Live interactions that gave way to the same ones of a backfill.",
}


def _no_checkpoint(_: int) -> int | None:
    return None


@dataclass(frozen=True, kw_only=True, eq=False)  # the registry tells collectors apart by identity
class StateNodeCollector(Collector):
    """A state node: ingest, its partitions, their stores, and whether it is alive."""

    counters: Mapping[str, int]
    polls: PollHistograms
    phases: Callable[[], Mapping[int, Phase]]
    progress: Progress
    verdict: Callable[[], Verdict]
    stores: PartitionStores
    backlog: Callable[[], Backlog | None]
    """Of compression; None while not known."""
    jobs: Mapping[str, int]
    """Of compression, counted by JobDispatcher."""
    checkpoint_created_at_ms: Callable[[int], int | None] = _no_checkpoint
    """When the newest checkpoint of a partition was made; None where there is none."""
    checkpoint_failures: Callable[[int], int | None] = _no_checkpoint
    """How many checkpoints of a partition failed; None where none are kept."""
    backfills: Taken = field(default_factory=Taken)

    def collect(self) -> Iterator[Metric]:
        """Read the node. A partition that is closed meanwhile is left out."""
        yield from self._ingest()
        yield from self._partitions()
        yield from self._stores()

    def _ingest(self) -> Iterator[Metric]:
        for name, meaning in INGEST_COUNTERS.items():
            yield metric_counter(f"ingest_{name}", meaning, self.counters.get(name, 0))
        for each in fields(self.polls):
            name, meaning = _POLL_HISTOGRAMS[each.name]
            yield metric_histogram(f"ingest_{name}", meaning, {(): getattr(self.polls, each.name)})
        stalled = not self.verdict().alive
        yield metric_gauge("ingest_stalled", "1 when /healthz says 503.", {(): stalled})
        reachable = None
        if self.progress.partitions():
            reachable = self.progress.is_broker_reachable()
        yield metric_gauge(
            "broker_reachable", "1 when Kafka said lately where the logs end.", {(): reachable}
        )
        yield from self._compression()
        for name, meaning in _BACKFILL_COUNTERS.items():
            yield metric_counter(f"backfill_{name}", meaning, getattr(self.backfills, name))

    def _compression(self) -> Iterator[Metric]:
        backlog = self.backlog()
        for figure, (name, meaning) in _BACKLOG_GAUGES.items():
            yield metric_gauge(name, meaning, {(): getattr(backlog, figure, None)})
        for counter, (name, meaning) in _JOB_COUNTERS.items():
            yield metric_counter(name, meaning, self.jobs.get(counter, 0))

    def _partitions(self) -> Iterator[Metric]:
        phases = self.phases()
        yield metric_gauge(
            "partition_phase",
            "1 for the phase that the partition is in.",
            {
                labels_of(each, phase): now is phase
                for each, now in phases.items()
                for phase in Phase
            },
            ["partition", "phase"],
        )
        standing = {partition: self.progress.of(partition) for partition in phases}
        for figure, (name, meaning) in _PROGRESS_GAUGES.items():
            values = {labels_of(each): getattr(where, figure) for each, where in standing.items()}
            yield metric_gauge(f"partition_{name}", meaning, values, ["partition"])
        now_ms = time.time() * 1_000
        ages = {
            labels_of(partition): max(0.0, now_ms - created_at_ms) / 1_000
            for partition in phases
            if (created_at_ms := self.checkpoint_created_at_ms(partition)) is not None
        }
        yield metric_gauge(
            "checkpoint_age_seconds", "Since the newest checkpoint was made.", ages, ["partition"]
        )
        failures = {
            labels_of(partition): self.checkpoint_failures(partition) for partition in phases
        }
        yield metric_counters(
            "checkpoint_failures", "Checkpoints that failed.", failures, ["partition"]
        )

    def _stores(self) -> Iterator[Metric]:
        figures: dict[tuple[str, ...], StoreFigures] = {}
        holes: dict[tuple[str, ...], float] = {}
        lost: dict[tuple[str, ...], float] = {}
        quarantined: dict[tuple[str, ...], float] = {}
        for partition in self.stores.partitions():
            try:
                store = self.stores.get(partition)
                key, skipped = labels_of(partition), store.holes()
                figures[key] = store.database.figures()
            except StateError as error:
                log.info("partition %d is left out of the metrics: %s", partition, error)
                continue
            quarantined[key] = len(store.quarantine.users)
            holes[key] = len(skipped)
            lost[key] = sum(hole.end_offset - hole.start_offset for hole in skipped)
        yield metric_counters("holes", "Holes that an operator accepted.", holes, ["partition"])
        yield metric_counters("hole_offsets", "Offsets in those holes.", lost, ["partition"])
        yield metric_gauge(
            "quarantined_users",
            "Users a value of whom is damaged (docs/damage.md).",
            quarantined,
            ["partition"],
        )
        yield metric_counters(
            "released_users",
            "Users who left the quarantine because they were found whole; dead letters of theirs wait for a replay.",
            {labels_of(each): num for each, num in self.stores.released_users.copy().items()},
            ["partition"],
        )
        yield from _store_gauges(figures)


def _store_gauges(figures: Mapping[tuple[str, ...], StoreFigures]) -> Iterator[Metric]:
    for figure, (name, meaning) in _STORE_GAUGES.items():
        values = {key: getattr(each, figure) for key, each in figures.items()}
        yield metric_gauge(f"store_{name}", meaning, values, ["partition"])
    cache_bytes = max((each.block_cache_bytes for each in figures.values()), default=None)
    meaning = "Bytes in the block cache, which all partitions share."
    yield metric_gauge("store_block_cache_bytes", meaning, {(): cache_bytes})
