"""Our own ranker: a bundle trained on the training weeks, asked for every test basket."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.progress import Progress

from bench.quality.complete_journey import Task
from model.bundle import Bundle, load_bundle
from model.catalogue import CatalogueItem
from model.new_items import NewItem, with_new_items
from model.training.batches import BatchBuilder
from model.training.config import TrainConfig
from model.training.evaluate import rank_at
from model.training.histories import Index
from model.training.train import train
from state.segments import HistoryConfig

_ALL = 1_000_000  # lifecycle interactions: no sampling
_NUM_ALIKE = 20
HISTORY = HistoryConfig(recent_len=64, mid_term_len=256, chunk_len=64)
"""As in the demo: three segments for every long history."""


def train_bundle(task: Task, minutes: float, num_threads: int, out: Path) -> Bundle:
    """With the default configuration but for the segments."""
    config = TrainConfig(history=HISTORY, minutes=minutes, num_threads=num_threads)
    with Progress() as progress:
        train(task.training, task.items_path, config, out, progress)
    return load_bundle(out)


def rank(
    bundle: Bundle, task: Task, cuts: Index, beam_width: int, progress: Progress
) -> Iterator[np.ndarray]:
    """Item ids for the basket at each cut, best first."""
    network, catalogue, trie = bundle.network, bundle.catalogue, bundle.trie
    builder = BatchBuilder(task.histories, catalogue, network.config, bundle.history, _ALL)
    ranked = rank_at(network, trie, builder, cuts, beam_width)
    bar = progress.add_task("gemstream", total=len(cuts))
    for best in ranked:
        progress.advance(bar)
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
