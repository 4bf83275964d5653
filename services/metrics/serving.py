"""Metrics of gRPC servers and of what answers requests: the generator, the catalogue, the sources of items."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client.core import (
    Metric,
)
from prometheus_client.registry import Collector

from services.batcher import Batcher
from services.context_cache import ContextCache
from services.request_stats import RequestStats
from services.trending import Trending

if TYPE_CHECKING:  # metrics of other roles do without torch
    from services.catalogue_follower import CatalogueFollower
from services.metrics.families import (
    labels_of,
    metric_counter,
    metric_counters,
    metric_gauge,
    metric_histogram,
)

_BATCH_COUNTERS = {
    "batches": ("batches", "Times that the network answered some requests together."),
    "jobs": ("requests", "Requests that went through the network."),
    "shed": ("shed_requests", "Requests refused because too many waited."),
    "expired": ("expired_requests", "Requests whose time ran out before the answer."),
    "cancelled": ("cancelled_requests", "Requests that their callers gave up."),
}


@dataclass(frozen=True, eq=False)
class RequestCollector(Collector):
    """A gRPC server's requests."""

    requests: RequestStats

    def collect(self) -> Iterator[Metric]:
        """Read the counts."""
        answered = {labels_of(*key): count for key, count in list(self.requests.answered.items())}
        yield metric_counters("grpc_requests", "Calls answered.", answered, ["method", "code"])
        seconds = {labels_of(method): each for method, each in list(self.requests.seconds.items())}
        yield metric_histogram(
            "grpc_request_seconds", "Seconds to answer a call.", seconds, ["method"]
        )


@dataclass(frozen=True, eq=False)
class GenerationCollector(Collector):
    """An inference node's queue, batches and cached users."""

    batcher: Batcher[Any, Any]
    contexts: ContextCache

    def collect(self) -> Iterator[Metric]:
        """Read the counts."""
        for counter, (name, meaning) in _BATCH_COUNTERS.items():
            yield metric_counter(
                f"generation_{name}", meaning, self.batcher.counters.get(counter, 0)
            )
        pending = "Requests that wait or are in hand."
        yield metric_gauge("generation_pending_requests", pending, {(): self.batcher.num_pending})
        yield metric_counters(
            "context_cache_parts",
            "Parts of users that were cached, or had to be encoded.",
            {labels_of(*key): count for key, count in list(self.contexts.parts.items())},
            ["part", "outcome"],
        )
        yield metric_counters(
            "context_keys",
            "Keys that codes attended to: interactions and tokens, and what fills them up to fixed sizes.",
            {labels_of(kind): count for kind, count in list(self.contexts.keys.items())},
            ["kind"],
        )
        yield metric_gauge("context_cache_users", "Users cached.", {(): len(self.contexts)})
        yield metric_gauge("context_cache_bytes", "Bytes of them.", {(): self.contexts.num_bytes})


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
            yield metric_gauge(f"catalogue_{name}", meaning, {(): value})
        yield metric_histogram(
            "catalogue_rebuild_seconds",
            "Seconds to build a version.",
            {(): self.catalogue.rebuild_s},
        )


@dataclass(frozen=True, eq=False)
class SourceCollector(Collector):
    """Where the items of an inference node's answers come from."""

    served: Mapping[str, int]
    trending: Trending

    def collect(self) -> Iterator[Metric]:
        """Read the counts."""
        served = {labels_of(source): count for source, count in list(self.served.items())}
        yield metric_counters("recommended_items", "Items of answers.", served, ["source"])
        yield metric_gauge(
            "trending_items", "Items that trend.", {(): len(self.trending.items().item_ids)}
        )
        yield metric_gauge(
            "trending_age_seconds",
            "Since the partition spoke that has been silent for longest.",
            {(): self.trending.age_s()},
        )
