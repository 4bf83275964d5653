"""The oracle as a ranker, and our network as configured for the synthetic stream, with and without a stream."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bench.quality.ablations import Variant, changed
from bench.quality.changes import Changes, configure
from bench.quality.gemstream_ranker import Gemstream
from bench.quality.synthetic.event_stream import topics_of
from bench.quality.synthetic.lives import live
from bench.quality.synthetic.oracle import Oracle
from bench.quality.synthetic.synthetic_task import SyntheticTask
from bench.quality.task import NUM_RANKED, Budget, ItemIds, Task
from bench.quality.ties import best_places
from model.training.config import TrainConfig
from model.training.histories import Index

SETTINGS: Changes = {
    "items.cooccurrence_weight": 0.5,
    "tokenizer.codebook_sizes": (64, 64, 64),
    "network.features.item_buckets": 16_384,
    "network.layer.num_heads": 1,
    "network.layer.dropout": 0.0,
    "network.code_recency": True,
    "network.live_prior": True,
    "network.repeats.enabled": False,  # what comes back is a topic, seldom an item that the user had
    "targets": 4,
    "target_window": 4,
    "arrival_cuts": 0.75,
    "lifecycle_sample": 128,
    "reconstruction_weight": 0.0,
    "learning_rate": 1e-3,
    "table_rate": 0.5,
    "stages.shares": (0.86, 0.02, 0.12),  # top_k is more than the mid-term segment
    "stages.evaluate_every": 500,
    "stages.patience": 100,
}


class OracleRanker:
    """The exact probabilities of the next item, as the generator had them."""

    name = "oracle"
    _seed = 0

    def fit(self, task: Task, budget: Budget) -> None:
        """It knows."""
        self._seed = budget.seed

    def rank(self, task: Task, cuts: Index) -> Iterator[ItemIds]:
        """By probability."""
        synthetic = of_stream(task)
        users = synthetic.histories.users[cuts]
        ranked: dict[int, ItemIds] = {}
        for user in np.unique(users).tolist():  # a life is made once
            ranked |= self._rank_user(synthetic, user, cuts[users == user])
        return (ranked[cut] for cut in cuts.tolist())

    def _rank_user(self, task: SyntheticTask, user: int, cuts: Index) -> dict[int, ItemIds]:
        topics = topics_of(task.config)
        oracle, life = Oracle(task.config, topics), live(task.config, topics, user)
        ids = task.items.item_ids
        places = np.searchsorted(topics.item_ids, ids)
        lists = {}
        for cut in cuts.tolist():
            place = cut - int(task.histories.user_start[cut])
            scores = oracle.item_probabilities(life, place)[places]
            lists[cut] = ids[best_places(scores, NUM_RANKED, self._seed, cut)]
        return lists


class SyntheticGemstream(Gemstream):
    """Our network; codes from content vectors and co-occurrence. `changes` of its settings, by dotted name."""

    def __init__(self, name: str = "gemstream_synthetic", changes: Changes = SETTINGS) -> None:
        super().__init__(name, configure(changes))

    def config(self, task: Task) -> TrainConfig:
        """With the task's content vectors."""
        config = super().config(task)
        return replace(config, items=replace(config.items, vectors=of_stream(task).content_path))


class WithoutLifecycle(SyntheticGemstream):
    """The same, but the decoder does not see the lifecycle stream; the repeats' statistics are still of all."""

    _variant = Variant(without=frozenset({"lifecycle"}))

    def __init__(
        self,
        name: str = "gemstream_synthetic_without_lifecycle",
        changes: Changes = SETTINGS,
    ) -> None:
        super().__init__(name, changes)

    def fit(self, task: Task, budget: Budget) -> None:
        """Train a bundle."""
        with changed(self._variant):
            super().fit(task, budget)

    def rank(self, task: Task, cuts: Index) -> Iterator[ItemIds]:
        """Without it, too."""
        with changed(self._variant):
            return iter(list(super().rank(task, cuts)))


def of_stream(task: Task) -> SyntheticTask:
    """The task as one that knows the truth. Raises TypeError for any other."""
    if not isinstance(task, SyntheticTask):
        raise TypeError(f"{task.name} is not a synthetic stream: its causes are not known")
    return task
