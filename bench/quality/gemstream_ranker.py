"""Our own ranker: a bundle trained on the training weeks, asked for every test basket."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress

from bench.quality.complete_journey import Task
from model.bundle import Bundle, load_bundle
from model.catalogue import Catalogue
from model.training.batches import BatchBuilder
from model.training.config import TrainConfig
from model.training.evaluate import rank_at
from model.training.histories import Index
from model.training.train import train
from model.trie import Trie
from state.segments import HistoryConfig

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
    catalogue = _with_new_items(bundle, task)
    trie = Trie(catalogue.sids_SD, catalogue.sid_counts_S)
    config = bundle.network.config
    builder = BatchBuilder(task.histories, catalogue, config, bundle.history, 1_000_000)
    ranked = rank_at(bundle.network, trie, builder, cuts, beam_width)
    bar = progress.add_task("gemstream", total=len(cuts))
    for best in ranked:
        progress.advance(bar)
        yield catalogue.item_ids[best]


def _with_new_items(bundle: Bundle, task: Task) -> Catalogue:
    """The bundle's catalogue and the task's other items, each under the SID that its tag's items have on average."""
    known, items = bundle.catalogue, task.items
    indices = known.find(items.item_ids)
    vectors = _item_vectors(bundle)
    by_tag = {
        tag: vectors[known.columns["tags"] == tag].mean(0)
        for tag in np.unique(known.columns["tags"]).tolist()
    }
    of_all = vectors.mean(0)
    guesses = torch.stack([by_tag.get(tag, of_all) for tag in items.tags.tolist()])
    sids = bundle.tokenizer.assign(guesses).numpy()
    sids[indices >= 0] = known.columns["sids"][indices[indices >= 0]]
    return items.with_sids(sids)


def _item_vectors(bundle: Bundle) -> torch.Tensor:
    """[N, V]: the sum of each item's codes."""
    sids = torch.from_numpy(bundle.catalogue.columns["sids"])
    levels = torch.arange(sids.shape[1])
    return bundle.tokenizer.codebooks[levels, sids].sum(1)
