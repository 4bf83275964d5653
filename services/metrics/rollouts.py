"""Metrics of the bundle that is being rolled out over a state node's users."""

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from services.metrics.families import labels_of, metric_gauge
from state.bundle_rollout import WalkState
from state.errors import StateError
from state.inspection import count_owed_next
from state.partition_stores import PartitionStores

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class RolloutCollector(Collector):
    """Reads the stores, where progress is kept. Nothing is exposed of a node without a rollout."""

    stores: PartitionStores

    def collect(self) -> Iterator[Metric]:
        """Sum over the partitions. One that is closed meanwhile is left out."""
        remaining: Counter[tuple[str, ...]] = Counter()
        rates: dict[tuple[str, ...], float] = {}
        paused: dict[tuple[str, ...], float] = {}
        for partition in self.stores.partitions():
            try:
                store = self.stores.get(partition)
                walk, num_users = store.bundles.rollout, store.num_users()
                owed = count_owed_next(store.database)
            except StateError as error:
                log.info("partition %d is left out of the metrics: %s", partition, error)
                continue
            if walk is None:
                continue
            version = labels_of(walk.bundle_version)
            is_done = walk.state is WalkState.DONE
            remaining[*version, "to_walk"] += 0 if is_done else max(0, num_users - walk.walked)
            remaining[*version, "owed"] += owed
            rates[version] = min(rates.get(version, walk.users_per_s), walk.users_per_s)
            paused[version] = max(paused.get(version, 0), walk.state is WalkState.PAUSED)
        yield metric_gauge(
            "rollout_remaining_users",
            "Users without the next bundle's summary: not looked at yet, or marked and owed it.",
            remaining,
            ["version", "stage"],
        )
        meaning = "Users a second that the whole node may mark."
        yield metric_gauge("rollout_users_per_second", meaning, rates, ["version"])
        meaning = "1 while the rollout is paused in some partition."
        yield metric_gauge("rollout_paused", meaning, paused, ["version"])
