"""Small tasks made of plain rows."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.quality.events import counted_in, make_event_log
from bench.quality.protocols import cuts_between, leave_one_out, until
from bench.quality.task import Provenance, Task
from model.catalogue import collect_items
from model.training.histories import build_histories
from state.item_statistics import DAY_MS
from state.segments import HistoryConfig

START_MS = 1_600_000_000_000
PROVENANCE = Provenance(source="made up", licence="none", protocol="of the test")
SEGMENTS = HistoryConfig(recent_len=4, mid_term_len=8, chunk_len=2)
Row = tuple[int, int, int]
"""User, item, day."""


def time_split_task(
    rows: Sequence[Row], validation_day: int, test_day: int, repeats: bool = True
) -> Task:
    """Rows before `validation_day` train; each day of a user is a basket."""
    users, items, days = (np.array(column) for column in zip(*rows, strict=True))
    times = START_MS + days * DAY_MS
    log = make_event_log(users, {"item_id": items, "event_time_ms": times})
    histories = build_histories(log)
    table = collect_items(log.rows, 1, None)
    begins = [START_MS + day * DAY_MS for day in (validation_day, test_day, 10_000)]
    training = until(log, begins[0])
    return Task(
        name="made_up",
        training=training,
        histories=histories,
        cuts=cuts_between(histories, table, begins[1], begins[2]),
        validation_cuts=cuts_between(histories, table, begins[0], begins[1]),
        items=counted_in(training, table),
        items_path=Path("none.parquet"),
        segments=SEGMENTS,
        repeats=repeats,
        provenance=PROVENANCE,
        length_bounds=(5, 10),
    )


def random_rows(
    seed: int, num_users: int = 12, num_items: int = 30, num_days: int = 40
) -> list[Row]:
    """Everybody buys a few items every other day, own favourites most of all."""
    random = np.random.default_rng(seed)
    rows = []
    for user in range(1, num_users + 1):
        favourites = random.integers(1, num_items + 1, 6)
        for day in range(num_days):
            if random.random() < 0.5:
                continue
            bought = [*random.choice(favourites, 2), *random.integers(1, num_items + 1, 2)]
            rows += [(user, int(item), day) for item in bought]
    return rows


def leave_one_out_task(sequences: dict[int, list[int]]) -> Task:
    """Items of each user in order."""
    rows = [
        (user, item, day) for user, items in sequences.items() for day, item in enumerate(items)
    ]
    users, items, days = (np.array(column) for column in zip(*rows, strict=True))
    log = make_event_log(users, {"item_id": items, "event_time_ms": START_MS + days * DAY_MS})
    training, histories, cuts, validation_cuts = leave_one_out(log)
    return Task(
        name="made_up",
        training=training,
        histories=histories,
        cuts=cuts,
        validation_cuts=validation_cuts,
        items=counted_in(training, collect_items(log.rows, 1, None)),
        items_path=Path("none.parquet"),
        segments=SEGMENTS,
        repeats=False,
        provenance=PROVENANCE,
    )
