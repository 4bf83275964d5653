"""What training data say of items for the repeat path: how many came back to them, and how popular they are lately."""

import numpy as np
import numpy.typing as npt
import torch

from model.features import hash_buckets
from model.network import Network
from model.repeats import NUM_ITEM_COUNTS, Repeats
from model.training.batches import BatchBuilder
from model.training.histories import Histories
from model.training.popularity_log import PopularityLog
from state.item_statistics import DAY_MS, Records, statistics_of

_WEEKS = (1, 4, 8)
_SAMPLE = 512


def describe_items(
    repeats: Repeats, histories: Histories, popularity: PopularityLog, item_buckets: int
) -> None:
    """What `set_item_counts` asks for, of everything trainable, per row of the item table; and how popular items are at its end."""
    trainable = np.arange(len(histories.rows)) < histories.train_end
    times, ids = histories.rows["event_time_ms"], histories.rows["item_id"]
    last_ms = times[trainable].max()
    seen = [_of_users(_once_per_user(histories))]
    for column, weeks in enumerate(_WEEKS, start=4):
        recent = ids[trainable & (times > last_ms - 7 * weeks * DAY_MS)]
        counts = np.zeros((len(recent), NUM_ITEM_COUNTS), np.float32)
        counts[:, column] = 1
        seen.append((recent, counts))
    rows = [torch.from_numpy(hash_buckets(item_ids, item_buckets)) for item_ids, _ in seen]
    repeats.set_item_counts(
        torch.cat(rows), torch.cat([torch.from_numpy(counts) for _, counts in seen])
    )
    repeats.popularity.copy_(popularity.at(torch.arange(item_buckets)[None], last_ms[None] + 1)[0])


def _of_users(records: Records) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float32]]:
    """Buyers, those who returned, how often they did, and the logarithms of their mean intervals, as often."""
    visits = records["visits"].astype(np.float64)
    days = (records["last_time_ms"] - records["first_time_ms"]) / DAY_MS
    log_interval = np.log1p(days / np.maximum(visits - 1, 1))
    counts = np.zeros((len(records), NUM_ITEM_COUNTS), np.float32)
    counts[:, :4] = np.stack(
        [np.ones(len(records)), visits > 1, visits - 1, (visits - 1) * log_interval], 1
    )
    return records["item_id"], counts


def _once_per_user(histories: Histories) -> Records:
    """The item statistics of all users' training histories, one after the other."""
    starts = np.unique(histories.user_start)
    return np.concatenate(
        [
            statistics_of(histories.rows[start : histories.train_end[start]]).items
            for start in starts
        ]
    )


def standardise(network: Network, builder: BatchBuilder, seed: int) -> None:
    """Means and scales of the features, from a sample of training cuts."""
    random = np.random.default_rng(seed)
    cuts = random.choice(builder.histories.train_cuts, _SAMPLE)
    candidates = builder.repeats(cuts)[0]
    network.repeats.standardise(candidates, network.features.item_vectors(candidates.rows))
