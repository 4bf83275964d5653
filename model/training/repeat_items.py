"""What training data say of items for the repeat path: how many came back to them, and how popular they are lately."""

import numpy as np
import torch

from model.features import hash_buckets
from model.repeats import Repeats
from model.training.batches import BatchBuilder
from model.training.histories import Histories
from state.item_statistics import DAY_MS, Records, statistics_of

_RECENT_MS = 28 * DAY_MS
_SAMPLE = 512


def describe_items(repeats: Repeats, histories: Histories, item_buckets: int) -> None:
    """Buyers, buyers with two visits or more, and interactions of the last four weeks, per row of the item table."""
    trainable = np.arange(len(histories.rows)) < histories.train_end
    times = histories.rows["event_time_ms"]
    recent = trainable & (times > times[trainable].max() - _RECENT_MS)
    seen = [_once_per_user(histories), histories.rows["item_id"][recent]]
    ids = np.concatenate([seen[0]["item_id"], seen[1]])
    counts = np.zeros((len(ids), 3), np.float32)
    counts[: len(seen[0]), 0] = 1
    counts[: len(seen[0]), 1] = seen[0]["visits"] > 1
    counts[len(seen[0]) :, 2] = 1
    rows = torch.from_numpy(hash_buckets(ids, item_buckets))
    repeats.set_item_counts(rows, torch.from_numpy(counts))


def _once_per_user(histories: Histories) -> Records:
    """The item statistics of all users' training histories, one after the other."""
    starts = np.unique(histories.user_start)
    return np.concatenate(
        [
            statistics_of(histories.rows[start : histories.train_end[start]]).items
            for start in starts
        ]
    )


def standardise(repeats: Repeats, builder: BatchBuilder, seed: int) -> None:
    """Means and scales of the features, from a sample of training cuts."""
    random = np.random.default_rng(seed)
    cuts = random.choice(builder.histories.train_cuts, _SAMPLE)
    repeats.standardise(builder.repeats(cuts)[0])
