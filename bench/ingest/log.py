"""The event logs: synthetic users with Zipf activity, a hot user among ordinary ones, and Complete Journey."""

import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from state.event_log import EventLog, read_event_log
from state.interaction import INTERACTION, Rows, hash_events

START_MS = 1_750_000_000_000
NUM_ITEMS = 100_000
HOT_USER = "hot-user"
NUM_ORDINARY_USERS = 20_000


def make_log(num_events: int, num_users: int, seed: int = 0) -> EventLog:
    """Events one millisecond apart, of users drawn with probability ~ 1 / rank."""
    random = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, num_users + 1)
    users = random.choice(num_users, num_events, p=weights / weights.sum())
    user_ids = [f"user-{number}" for number in range(num_users)]
    return _log(user_ids, users, START_MS + np.arange(num_events))


def make_hot_log(num_ordinary: int, num_hot: int, *, in_order: bool, seed: int = 0) -> EventLog:
    """Ordinary users, equally active and in order; the hot user's events lie anywhere among theirs.

    Not `in_order`: the hot user's event times are shuffled, so that most of them are late.
    """
    random = np.random.default_rng(seed)
    users = random.integers(0, NUM_ORDINARY_USERS, num_ordinary)
    users = np.concatenate([users, np.full(num_hot, NUM_ORDINARY_USERS)])
    users = users[random.permutation(len(users))]
    times_ms = START_MS + np.arange(len(users))
    if not in_order:
        hot = np.flatnonzero(users == NUM_ORDINARY_USERS)
        times_ms[hot] = times_ms[random.permutation(hot)]
    user_ids = [f"user-{number}" for number in range(NUM_ORDINARY_USERS)]
    return _log([*user_ids, HOT_USER], users, times_ms)


def make_histories(lengths: dict[str, int]) -> EventLog:
    """Users with histories of given lengths, one user after the other."""
    users = np.repeat(np.arange(len(lengths)), list(lengths.values()))
    return _log(list(lengths), users, START_MS + np.arange(len(users)))


def read_complete_journey(max_events: int | None) -> EventLog:
    """The receipts of 2,469 households in a year, or the first of the last weeks when fewer are wanted."""
    import pandas as pd

    from examples.complete_journey.dataset import prepare_dataset

    with tempfile.TemporaryDirectory(prefix="gemstream-bench-") as name:
        dataset = prepare_dataset(Path(name))
        if max_events is None:
            parts = [pd.read_parquet(p) for p in (dataset.history, dataset.live, dataset.future)]
            receipts = pd.concat(parts)
        else:
            receipts = pd.read_parquet(dataset.live)[:max_events]
        path = Path(name) / "log.parquet"
        receipts.to_parquet(path)
        return read_event_log(path)


def _log(
    user_ids: list[str], users: npt.NDArray[np.int64], times_ms: npt.NDArray[np.int64]
) -> EventLog:
    event_ids = [str(number) for number in range(len(users))]
    rows = random_rows(times_ms, np.random.default_rng(1))
    rows["event_hash"] = hash_events(event_ids, times_ms)
    return EventLog(user_ids, users, event_ids, rows)


def random_rows(times_ms: npt.NDArray[np.int64], random: np.random.Generator) -> Rows:
    """Views of random items, without event hashes."""
    rows = np.zeros(len(times_ms), INTERACTION)
    rows["item_id"] = random.integers(1, NUM_ITEMS, len(rows))
    rows["author_id"] = rows["item_id"] % 5_000
    rows["tag"] = rows["item_id"] % 300
    rows["event_time_ms"] = times_ms
    rows["play_time_ms"] = random.integers(0, 60_000, len(rows))
    rows["kinds"] = 2
    return rows
