"""Metrics of compression workers and of the process that counts what trends."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import (
    Metric,
)
from prometheus_client.registry import Collector

from services.metrics.families import labels_of, metric_counter, metric_gauge

_COMPRESSION_COUNTERS = {
    "stored": ("summaries", "Summaries that an owner stored."),
    "stale": ("stale_summaries", "Summaries that an owner refused, as another was there first."),
    "failed": ("failed_jobs", "Jobs that met an error, of which the owner was told."),
    "unreachable": ("unreachable_jobs", "Jobs whose owner was not to be reached."),
    "chunks": ("chunks", "Chunks compressed."),
}


_TRENDING_COUNTERS = {
    "events": ("events", "Interactions read, dislikes and old ones included."),
    "unreadable": (
        "unreadable",
        "Records that could not be read; the state node keeps them as dead letters.",
    ),
    "published": ("published", "Records of what trends in a partition."),
}


@dataclass(frozen=True, eq=False)
class CompressionCollector(Collector):
    """A compression worker's jobs."""

    counters: Mapping[str, int]
    jobs_in_hand: Callable[[], int]

    def collect(self) -> Iterator[Metric]:
        """Read the counts."""
        for counter, (name, meaning) in _COMPRESSION_COUNTERS.items():
            yield metric_counter(f"compression_{name}", meaning, self.counters.get(counter, 0))
        yield metric_gauge(
            "compression_jobs_in_hand", "Jobs taken and not done.", {(): self.jobs_in_hand()}
        )


@dataclass(frozen=True, eq=False)
class TrendingCollector(Collector):
    """A process that counts what trends."""

    counters: Mapping[str, int]
    lag_records: Callable[[], Mapping[int, int]]

    def collect(self) -> Iterator[Metric]:
        """Read the counts."""
        for counter, (name, meaning) in _TRENDING_COUNTERS.items():
            yield metric_counter(f"trending_{name}", meaning, self.counters.get(counter, 0))
        lags = {labels_of(partition): lag for partition, lag in self.lag_records().items()}
        yield metric_gauge("trending_lag_records", "Offsets not counted yet.", lags, ["partition"])
