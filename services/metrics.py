"""Prometheus metrics, read from the parts of a role when they are asked for. The only file that knows prometheus_client."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from services.batcher import Batcher
from services.context_cache import ContextCache
from services.request_stats import RequestStats
from services.trending import Trending
from state.errors import StateError
from state.key_value_store import StoreFigures
from state.partition_stores import PartitionStores
from stream.histogram import Histogram
from stream.ingest import PollHistograms
from stream.owed_summaries import Backlog
from stream.phases import Phase
from stream.progress import Progress
from stream.watchdog import Verdict

if TYPE_CHECKING:  # metrics of other roles do without torch
    from services.catalogue_follower import CatalogueFollower

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
_COMPRESSION_COUNTERS = {
    "stored": ("summaries", "Summaries that an owner stored."),
    "stale": ("stale_summaries", "Summaries that an owner refused, as another was there first."),
    "failed": ("failed_jobs", "Jobs that met an error, of which the owner was told."),
    "unreachable": ("unreachable_jobs", "Jobs whose owner was not to be reached."),
    "chunks": ("chunks", "Chunks compressed."),
}

_BATCH_COUNTERS = {
    "batches": ("batches", "Times that the network answered some requests together."),
    "jobs": ("requests", "Requests that went through the network."),
    "shed": ("shed_requests", "Requests refused because too many waited."),
    "expired": ("expired_requests", "Requests whose time ran out before the answer."),
    "cancelled": ("cancelled_requests", "Requests that their callers gave up."),
}


_TRENDING_COUNTERS = {
    "events": ("events", "Interactions read, dislikes and old ones included."),
    "unreadable": (
        "unreadable",
        "Records that could not be read; the state node keeps them as dead letters.",
    ),
    "published": ("published", "Records of what trends in a partition."),
}


class Metrics:
    """What one role exposes: its own collectors and the process's memory, CPU time and files."""

    def __init__(self, *collectors: Collector) -> None:
        """Nothing is read before `expose`."""
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        for collector in collectors:
            registry.register(collector)
        self._registry = registry

    def expose(self, accept: str) -> tuple[bytes, str]:
        """Body and content type, in the newest text format that the Accept header names."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


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

    def collect(self) -> Iterator[Metric]:
        """Read the node. A partition that is closed meanwhile is left out."""
        yield from self._ingest()
        yield from self._partitions()
        yield from self._stores()

    def _ingest(self) -> Iterator[Metric]:
        for name, meaning in INGEST_COUNTERS.items():
            yield _counter(f"ingest_{name}", meaning, self.counters.get(name, 0))
        for each in fields(self.polls):
            name, meaning = _POLL_HISTOGRAMS[each.name]
            yield _histogram(f"ingest_{name}", meaning, {(): getattr(self.polls, each.name)})
        stalled = not self.verdict().alive
        yield _gauge("ingest_stalled", "1 when /healthz says 503.", {(): stalled})
        reachable = None
        if self.progress.partitions():
            reachable = self.progress.is_broker_reachable()
        yield _gauge(
            "broker_reachable", "1 when Kafka said lately where the logs end.", {(): reachable}
        )
        yield from self._compression()

    def _compression(self) -> Iterator[Metric]:
        backlog = self.backlog()
        for field, (name, meaning) in _BACKLOG_GAUGES.items():
            yield _gauge(name, meaning, {(): getattr(backlog, field, None)})
        for counter, (name, meaning) in _JOB_COUNTERS.items():
            yield _counter(name, meaning, self.jobs.get(counter, 0))

    def _partitions(self) -> Iterator[Metric]:
        phases = self.phases()
        yield _gauge(
            "partition_phase",
            "1 for the phase that the partition is in.",
            {_key(each, phase): now is phase for each, now in phases.items() for phase in Phase},
            ["partition", "phase"],
        )
        standing = {partition: self.progress.of(partition) for partition in phases}
        for field, (name, meaning) in _PROGRESS_GAUGES.items():
            values = {_key(each): getattr(where, field) for each, where in standing.items()}
            yield _gauge(f"partition_{name}", meaning, values, ["partition"])
        now_ms = time.time() * 1_000
        ages = {
            _key(partition): max(0.0, now_ms - created_at_ms) / 1_000
            for partition in phases
            if (created_at_ms := self.checkpoint_created_at_ms(partition)) is not None
        }
        yield _gauge(
            "checkpoint_age_seconds", "Since the newest checkpoint was made.", ages, ["partition"]
        )
        failures = {_key(partition): self.checkpoint_failures(partition) for partition in phases}
        yield _counters("checkpoint_failures", "Checkpoints that failed.", failures, ["partition"])

    def _stores(self) -> Iterator[Metric]:
        figures: dict[tuple[str, ...], StoreFigures] = {}
        holes: dict[tuple[str, ...], float] = {}
        lost: dict[tuple[str, ...], float] = {}
        for partition in self.stores.partitions():
            try:
                store = self.stores.get(partition)
                key, skipped = _key(partition), store.holes()
                figures[key] = store.database.figures()
            except StateError as error:
                log.info("partition %d is left out of the metrics: %s", partition, error)
                continue
            holes[key] = len(skipped)
            lost[key] = sum(hole.end_offset - hole.start_offset for hole in skipped)
        yield _counters("holes", "Holes that an operator accepted.", holes, ["partition"])
        yield _counters("hole_offsets", "Offsets in those holes.", lost, ["partition"])
        yield from _store_gauges(figures)


@dataclass(frozen=True, eq=False)
class RequestCollector(Collector):
    """A gRPC server's requests."""

    requests: RequestStats

    def collect(self) -> Iterator[Metric]:
        """Read the counts."""
        answered = {_key(*key): count for key, count in list(self.requests.answered.items())}
        yield _counters("grpc_requests", "Calls answered.", answered, ["method", "code"])
        seconds = {_key(method): each for method, each in list(self.requests.seconds.items())}
        yield _histogram("grpc_request_seconds", "Seconds to answer a call.", seconds, ["method"])


@dataclass(frozen=True, eq=False)
class CompressionCollector(Collector):
    """A compression worker's jobs."""

    counters: Mapping[str, int]
    jobs_in_hand: Callable[[], int]

    def collect(self) -> Iterator[Metric]:
        """Read the counts."""
        for counter, (name, meaning) in _COMPRESSION_COUNTERS.items():
            yield _counter(f"compression_{name}", meaning, self.counters.get(counter, 0))
        yield _gauge(
            "compression_jobs_in_hand", "Jobs taken and not done.", {(): self.jobs_in_hand()}
        )


@dataclass(frozen=True, eq=False)
class GenerationCollector(Collector):
    """An inference node's queue, batches and cached users."""

    batcher: Batcher[Any, Any]
    contexts: ContextCache

    def collect(self) -> Iterator[Metric]:
        """Read the counts."""
        for counter, (name, meaning) in _BATCH_COUNTERS.items():
            yield _counter(f"generation_{name}", meaning, self.batcher.counters.get(counter, 0))
        pending = "Requests that wait or are in hand."
        yield _gauge("generation_pending_requests", pending, {(): self.batcher.num_pending})
        yield _counters(
            "context_cache_parts",
            "Parts of users that were cached, or had to be encoded.",
            {_key(*key): count for key, count in list(self.contexts.parts.items())},
            ["part", "outcome"],
        )
        yield _counters(
            "context_keys",
            "Keys that codes attended to: interactions and tokens, and what fills them up to fixed sizes.",
            {_key(kind): count for kind, count in list(self.contexts.keys.items())},
            ["kind"],
        )
        yield _gauge("context_cache_users", "Users cached.", {(): len(self.contexts)})
        yield _gauge("context_cache_bytes", "Bytes of them.", {(): self.contexts.num_bytes})


@dataclass(frozen=True, eq=False)
class CatalogueCollector(Collector):
    """An inference node's catalogue."""

    catalogue: "CatalogueFollower"

    def collect(self) -> Iterator[Metric]:
        """Read the catalogue; nothing is counted anew."""
        version, live = self.catalogue.version, self.catalogue.live
        newest_s = version.newest_record_ms / 1_000
        age_s = max(0.0, time.time() - newest_s) if newest_s else None
        gauges: dict[str, tuple[str, float | None]] = {
            "items": ("Items in the trie.", version.num_items),
            "sids": ("Distinct SIDs in the trie.", version.num_sids),
            "version": ("Version that is served, counted on this node.", version.number),
            "offset": ("The first offset of the topic not served yet.", version.next_offset),
            "newest_record_age_seconds": ("Since the newest served record was written.", age_s),
            "pending_items": ("Items with changes that are not built in yet.", len(live.pending)),
            "refused_items": ("Records that cannot be used.", self.catalogue.num_refused),
            "held": ("1 after a rollback, until it is resumed.", live.is_held),
            "following": ("1 while Kafka answers.", self.catalogue.is_following),
        }
        for name, (meaning, value) in gauges.items():
            yield _gauge(f"catalogue_{name}", meaning, {(): value})
        yield _histogram(
            "catalogue_rebuild_seconds",
            "Seconds to build a version.",
            {(): self.catalogue.rebuild_s},
        )


@dataclass(frozen=True, eq=False)
class TrendingCollector(Collector):
    """A process that counts what trends."""

    counters: Mapping[str, int]
    lag_records: Callable[[], Mapping[int, int]]

    def collect(self) -> Iterator[Metric]:
        """Read the counts."""
        for counter, (name, meaning) in _TRENDING_COUNTERS.items():
            yield _counter(f"trending_{name}", meaning, self.counters.get(counter, 0))
        lags = {_key(partition): lag for partition, lag in self.lag_records().items()}
        yield _gauge("trending_lag_records", "Offsets not counted yet.", lags, ["partition"])


@dataclass(frozen=True, eq=False)
class SourceCollector(Collector):
    """Where the items of an inference node's answers come from."""

    served: Mapping[str, int]
    trending: Trending

    def collect(self) -> Iterator[Metric]:
        """Read the counts."""
        served = {_key(source): count for source, count in list(self.served.items())}
        yield _counters("recommended_items", "Items of answers.", served, ["source"])
        yield _gauge(
            "trending_items", "Items that trend.", {(): len(self.trending.items().item_ids)}
        )
        yield _gauge(
            "trending_age_seconds",
            "Since the partition spoke that has been silent for longest.",
            {(): self.trending.age_s()},
        )


def _store_gauges(figures: Mapping[tuple[str, ...], StoreFigures]) -> Iterator[Metric]:
    for field, (name, meaning) in _STORE_GAUGES.items():
        values = {key: getattr(each, field) for key, each in figures.items()}
        yield _gauge(f"store_{name}", meaning, values, ["partition"])
    cache_bytes = max((each.block_cache_bytes for each in figures.values()), default=None)
    meaning = "Bytes in the block cache, which all partitions share."
    yield _gauge("store_block_cache_bytes", meaning, {(): cache_bytes})


def _key(*labels: object) -> tuple[str, ...]:
    return tuple(map(str, labels))


_Values = Mapping[tuple[str, ...], float | None]
"""By the values of the labels; None = not known, left out."""


def _counter(name: str, meaning: str, value: float) -> Metric:
    return _counters(name, meaning, {(): value}, [])


def _counters(name: str, meaning: str, values: _Values, labels: list[str]) -> Metric:
    family = CounterMetricFamily(f"gemstream_{name}", meaning, labels=labels)
    for key, value in _known(values):
        family.add_metric(key, value)
    return family


def _gauge(name: str, meaning: str, values: _Values, labels: Iterable[str] = ()) -> Metric:
    family = GaugeMetricFamily(f"gemstream_{name}", meaning, labels=list(labels))
    for key, value in _known(values):
        family.add_metric(key, value)
    return family


def _known(values: _Values) -> Iterator[tuple[tuple[str, ...], float]]:
    return ((key, float(value)) for key, value in values.items() if value is not None)


def _histogram(
    name: str,
    meaning: str,
    histograms: Mapping[tuple[str, ...], Histogram],
    labels: Iterable[str] = (),
) -> Metric:
    family = HistogramMetricFamily(f"gemstream_{name}", meaning, labels=list(labels))
    for key, histogram in histograms.items():
        buckets, total = [], 0
        for bound, count in zip([*histogram.bounds, float("inf")], histogram.counts(), strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), total))
        family.add_metric(key, buckets, histogram.sum)
    return family
