"""A tiny task in which each item is followed by one certain other item."""

from pathlib import Path

import numpy as np

from bench.quality.events import counted_in, make_event_log
from bench.quality.protocols import leave_one_out
from bench.quality.task import Provenance, Task
from model.catalogue import collect_items
from state.item_statistics import DAY_MS
from state.segments import HistoryConfig

NUM_ITEMS = 60
_BEGIN_MS = 1_000_000_000_000


def planted_task(num_users: int = 300, length: int = 9) -> Task:
    """Users begin anywhere on one circle of items and walk along it; leave-one-out."""
    random = np.random.default_rng(0)
    following = random.permutation(NUM_ITEMS)
    steps = np.arange(length)[None] + random.integers(0, NUM_ITEMS, num_users)[:, None]
    items = 1 + following[steps % NUM_ITEMS]
    users = np.repeat(np.arange(num_users), length)
    times = _BEGIN_MS + DAY_MS * np.tile(np.arange(length), num_users)
    log = make_event_log(users, {"item_id": items.ravel(), "event_time_ms": times})
    training, histories, cuts, validation_cuts = leave_one_out(log)
    return Task(
        name="planted",
        training=training,
        histories=histories,
        cuts=cuts,
        validation_cuts=validation_cuts,
        items=counted_in(training, collect_items(log.rows, 1, None)),
        items_path=Path("items.parquet"),
        segments=HistoryConfig(recent_len=64, mid_term_len=256, chunk_len=64),
        repeats=False,
        provenance=Provenance(source="made up", licence="none", protocol="leave-one-out"),
    )
