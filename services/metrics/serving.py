"""Metrics of gRPC servers and of what answers requests: the generator, the catalogue, the sources of items."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client.core import (
    Metric,
)
from prometheus_client.registry import Collector

from services.answer_stats import AnswerStats
from services.batcher import Batcher
from services.context_cache import ContextCache
from services.request_stats import RequestStats
from services.traffic_split import Role
from services.trending import Trending

if TYPE_CHECKING:  # metrics of other roles do without torch
    from services.catalogue_follower import CatalogueFollower
from services.metrics.families import (
    labels_of,
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


class Generating(Protocol):
    """A queue and the users cached; services.generation.Generator is one."""

    @property
    def batcher(self) -> Batcher[Any, Any]: ...
    @property
    def contexts(self) -> ContextCache: ...


@dataclass(frozen=True, eq=False)
class GenerationCollector(Collector):
    """An inference node's queues, batches and cached users, by the role of the bundle."""

    generators: Callable[[], Mapping[Role, Generating]]

    def collect(self) -> Iterator[Metric]:
        """Read the counts."""
        generators = self.generators()
        for counter, (name, meaning) in _BATCH_COUNTERS.items():
            counts = {
                labels_of(role): each.batcher.counters.get(counter, 0)
                for role, each in generators.items()
            }
            yield metric_counters(f"generation_{name}", meaning, counts, ["bundle"])
        gauges: dict[str, tuple[str, Callable[[Generating], int]]] = {
            "generation_pending_requests": (
                "Requests that wait or are in hand.",
                lambda each: each.batcher.num_pending,
            ),
            "context_cache_users": ("Users cached.", lambda each: len(each.contexts)),
            "context_cache_bytes": ("Bytes of them.", lambda each: each.contexts.num_bytes),
        }
        for name, (meaning, value) in gauges.items():
            values = {labels_of(role): value(each) for role, each in generators.items()}
            yield metric_gauge(name, meaning, values, ["bundle"])
        yield metric_counters(
            "context_cache_parts",
            "Parts of users that were cached, or had to be encoded.",
            {
                labels_of(role, *key): count
                for role, each in generators.items()
                for key, count in list(each.contexts.parts.items())
            },
            ["bundle", "part", "outcome"],
        )
        yield metric_counters(
            "context_keys",
            "Keys that codes attended to: interactions and tokens, and what fills them up to fixed sizes.",
            {
                labels_of(role, kind): count
                for role, each in generators.items()
                for kind, count in list(each.contexts.keys.items())
            },
            ["bundle", "kind"],
        )


@dataclass(frozen=True, eq=False)
class AnswerCollector(Collector):
    """An inference node's bundles, and how they answer."""

    stats: AnswerStats
    bundles: Callable[[], Mapping[Role, tuple[str, float]]]
    """Version and share of users."""
    users: Mapping[tuple[str, str], int]
    """Answered for, by method and name of the status."""

    def collect(self) -> Iterator[Metric]:
        """Read the counts."""
        bundles, stats = self.bundles(), self.stats
        info = {labels_of(role, version): 1 for role, (version, _) in bundles.items()}
        yield metric_gauge("bundle_info", "1 for the version served.", info, ["bundle", "version"])
        shares = {labels_of(role): share for role, (_, share) in bundles.items()}
        yield metric_gauge("bundle_share", "Share of users.", shares, ["bundle"])
        answers = {labels_of(*key): count for key, count in list(stats.answers.items())}
        yield metric_counters("bundle_answers", "Answers.", answers, ["bundle", "code"])
        degraded = {labels_of(*key): count for key, count in list(stats.degraded.items())}
        yield metric_counters(
            "bundle_degraded_answers", "Answers that lack something.", degraded, ["bundle", "kind"]
        )
        seconds = {labels_of(role): each for role, each in list(stats.seconds.items())}
        yield metric_histogram("bundle_answer_seconds", "Seconds to answer.", seconds, ["bundle"])
        users = {labels_of(*key): count for key, count in list(self.users.items())}
        meaning = "Users answered for; a batch has many."
        yield metric_counters("recommended_users", meaning, users, ["method", "code"])


@dataclass(frozen=True, eq=False)
class CatalogueCollector(Collector):
    """The catalogue of an inference node's primary bundle."""

    primary: "Callable[[], CatalogueFollower]"

    def collect(self) -> Iterator[Metric]:
        """Read the catalogue; nothing is counted anew."""
        catalogue = self.primary()
        version, live = catalogue.version, catalogue.live
        newest_s = version.newest_record_ms / 1_000
        age_s = max(0.0, time.time() - newest_s) if newest_s else None
        gauges: dict[str, tuple[str, float | None]] = {
            "items": ("Items in the trie.", version.num_items),
            "sids": ("Distinct SIDs in the trie.", version.num_sids),
            "version": ("Version that is served, counted on this node.", version.number),
            "offset": ("The first offset of the topic not served yet.", version.next_offset),
            "newest_record_age_seconds": ("Since the newest served record was written.", age_s),
            "pending_items": ("Items with changes that are not built in yet.", len(live.pending)),
            "refused_items": ("Records that cannot be used.", catalogue.num_refused),
            "held": ("1 after a rollback, until it is resumed.", live.is_held),
            "following": ("1 while Kafka answers.", catalogue.is_following),
        }
        for name, (meaning, value) in gauges.items():
            yield metric_gauge(f"catalogue_{name}", meaning, {(): value})
        yield metric_histogram(
            "catalogue_rebuild_seconds",
            "Seconds to build a version.",
            {(): catalogue.rebuild_s},
        )


@dataclass(frozen=True, eq=False)
class SourceCollector(Collector):
    """Where the items of an inference node's answers come from."""

    served: Callable[[], Mapping[Role, Mapping[str, int]]]
    trending: Trending

    def collect(self) -> Iterator[Metric]:
        """Read the counts."""
        served = {
            labels_of(role, source): count
            for role, sources in self.served().items()
            for source, count in list(sources.items())
        }
        yield metric_counters(
            "recommended_items", "Items of answers.", served, ["bundle", "source"]
        )
        yield metric_gauge(
            "trending_items", "Items that trend.", {(): len(self.trending.items().item_ids)}
        )
        yield metric_gauge(
            "trending_age_seconds",
            "Since the partition spoke that has been silent for longest.",
            {(): self.trending.age_s()},
        )
