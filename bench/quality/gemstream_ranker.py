"""Our own ranker: a bundle trained on the training interactions, asked for every cut."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from bench.quality.changes import Changes, with_changes
from bench.quality.level_hits import LevelHits
from bench.quality.sources import CACHE
from bench.quality.task import Budget, ItemIds, Task
from model.bundle import Bundle, load_bundle
from model.catalogue import CatalogueItem
from model.item_knowledge import NewItem
from model.new_items import with_new_items
from model.training.batches import BatchBuilder
from model.training.config import TrainConfig
from model.training.evaluate import rank_at
from model.training.histories import Index
from model.training.train import train
from model.transitions import Followers

_ALL = 1_000_000  # lifecycle interactions: no sampling
_NUM_ALIKE = 20
FULL_SCALE: Changes = {
    "network.layer.width": 256,
    "network.layer.ffn_width": 768,
    "network.num_blocks": 4,
    "network.recent_layers": 4,
    "network.mid_term.num_layers": 2,
    "lifecycle_sample": 512,
    "learning_rate": 1e-3,
}
_FULL_BATCH_FACTOR = 4
_OF_STAGE = ("name", "steps", "validation_loss", "kept_attention_mass", "ended")


def at_full_scale(config: TrainConfig) -> TrainConfig:
    """The same for a GPU, or for hours."""
    batch_size = _FULL_BATCH_FACTOR * config.batch_size
    return with_changes(config, {**FULL_SCALE, "batch_size": batch_size})


class Gemstream:
    """The default configuration but for the task's segments, or another one under another name."""

    def __init__(
        self, name: str = "gemstream", config: TrainConfig | None = None, beam_width: int = 64
    ) -> None:
        """`config`: history, minutes, seed and number of threads are the task's and the budget's. None: the default one, which
        learns from the next basket alone where baskets are asked for."""
        self.name = name
        self._config = config
        self._beam_width = beam_width
        self._bundle: Bundle | None = None
        self._level_hit_rate: list[float] = []

    def config(self, task: Task) -> TrainConfig:
        """The settings for a task, but for what the task and the budget say."""
        if self._config is not None:
            return self._config
        return TrainConfig(target_window=1) if task.asks_for_baskets else TrainConfig()

    def fit(self, task: Task, budget: Budget) -> None:
        """Train a bundle."""
        settings, out = self.config(task), CACHE / task.name / f"{self.name}-{budget.seed}"
        if budget.scale == "full":
            settings, out = at_full_scale(settings), out.with_name(f"{out.name}-full")
        config = replace(
            settings,
            history=task.segments,
            target_kinds=task.target_kinds,
            minutes=budget.minutes,
            seed=budget.seed,
            num_threads=budget.num_threads,
        )
        with Progress(console=Console(stderr=True)) as progress:
            train(task.training, task.items_path, config, out, progress)
        self.use(out)

    def use(self, path: Path) -> None:
        """Rank with this bundle."""
        self._bundle = load_bundle(path)

    @property
    def bundle(self) -> Bundle:
        """That it ranks with. Raises RuntimeError before `fit` or `use`."""
        if self._bundle is None:
            raise RuntimeError("fit or use comes before rank")
        return self._bundle

    def rank(self, task: Task, cuts: Index) -> Iterator[ItemIds]:
        """Item ids for the basket at each cut, best first."""
        bundle = with_all_items(self.bundle, task)
        hits = LevelHits(task, bundle.catalogue)
        # Where nothing repeats, times are places in a sequence: earlier ones of others are not the past.
        ranked = rank(bundle, task, cuts, self._beam_width, live=task.repeats)
        for cut, ranking in zip(cuts.tolist(), ranked, strict=True):
            hits.add(cut, ranking)
            yield ranking
        self._level_hit_rate = hits.rates()

    def details(self) -> dict[str, Any]:
        """Steps, losses and kept attention mass by stage; how often the beam held the targets' first codes."""
        report = self.bundle.training_report
        return {
            "stages": [
                {key: stage.get(key) for key in _OF_STAGE} for stage in report.get("stages", [])
            ],
            "level_hit_rate": self._level_hit_rate,
        }


class TrainedGemstream(Gemstream):
    """A bundle that is there already. Raises BundleError when it cannot be read."""

    def __init__(self, path: str) -> None:
        """Named by its version: another bundle at the path is another ranker."""
        super().__init__()
        self.use(Path(path))
        self.name = f"bundle-{self.bundle.version}"

    def fit(self, task: Task, budget: Budget) -> None:
        """Nothing is left to learn."""


def rank(
    bundle: Bundle, task: Task, cuts: Index, beam_width: int, *, live: bool = True
) -> Iterator[ItemIds]:
    """Item ids of the bundle for the basket at each cut, best first.

    `live`: items are as popular as before each cut, else as at the training's end.
    """
    network, catalogue, trie = bundle.network, bundle.catalogue, bundle.trie
    builder = BatchBuilder(task.histories, catalogue, network.config, bundle.history, _ALL)
    if bundle.transitions is not None:
        builder.followers = Followers(bundle.transitions, catalogue)
    if live and network.config.repeats.enabled:
        builder.follow_popularity()
    if live and network.config.live_prior:
        builder.follow_prior(trie)
    ranked = rank_at(network, trie, builder, cuts, beam_width, only_new=not task.repeats)
    for best in ranked:
        yield catalogue.item_ids[best]


def with_all_items(bundle: Bundle, task: Task) -> Bundle:
    """Items that appeared after the training weeks get the SIDs of what is most popular under their tag."""
    known, items = bundle.catalogue, task.items
    by_popularity = known.by_popularity()
    tags = known.columns["tags"][by_popularity]
    new = []
    for place in np.flatnonzero(known.find(items.item_ids) < 0).tolist():
        item_id, tag = int(items.item_ids[place]), int(items.tags[place])
        alike = by_popularity[tags == tag] if (tags == tag).any() else by_popularity
        seen_with = known.item_ids[alike[:_NUM_ALIKE]].tolist()
        new.append(NewItem(item=CatalogueItem(item_id, tag=tag), seen_with=seen_with))
    return with_new_items(bundle, new)
