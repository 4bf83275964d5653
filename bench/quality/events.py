"""Makes the event log, the items file and the item table of a task from columns."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from bench.quality.sources import CACHE
from model.catalogue import ItemTable
from model.training.histories import Index
from state.event_log import EventLog
from state.interaction import INTERACTION, hash_events

_STEP_MS = 86_400_000
_FIRST_MS = 978_307_200_000  # 2001-01-01


def times_by_position(positions: Index) -> Index:
    """For sequences without times: position p is p days after 2001-01-01, so that each interaction is a basket of its own.

    All users begin on the same day: a test's times then lie among those that were trained on.
    """
    times: Index = _FIRST_MS + positions.astype(np.int64) * _STEP_MS
    return times


def make_event_log(users: npt.NDArray[Any], columns: dict[str, npt.NDArray[Any]]) -> EventLog:
    """From one row per interaction: the user, and columns of INTERACTION by name; rows of one time keep their order."""
    distinct, user_index = np.unique(users, return_inverse=True)
    rows = np.zeros(len(users), INTERACTION)
    for name, column in columns.items():
        rows[name] = column
    numbers = pa.array(np.arange(len(users))).cast(pa.string())
    event_ids = pc.binary_join_element_wise(pa.array(users).cast(pa.string()), numbers, "-")
    order = np.argsort(rows["event_time_ms"], kind="stable")
    rows, event_ids = rows[order], event_ids.take(pa.array(order)).to_pylist()
    rows["event_hash"] = hash_events(event_ids, rows["event_time_ms"])
    return EventLog(
        [str(user) for user in distinct], user_index.astype(np.int64)[order], event_ids, rows
    )


def part_of(log: EventLog, kept: npt.NDArray[np.bool_]) -> EventLog:
    """The interactions under the mask."""
    places = np.flatnonzero(kept)
    event_ids = [log.event_ids[place] for place in places.tolist()]
    return EventLog(log.user_ids, log.user_index[places], event_ids, log.rows[places])


def write_items(name: str, columns: dict[str, Any]) -> Path:
    """The items file of a data set, in columns that `gemstream train` knows."""
    path = CACHE / name / "items.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    pyarrow.parquet.write_table(pa.table(columns), partial)
    partial.replace(path)
    return path


def counted_in(training: EventLog, items: ItemTable) -> ItemTable:
    """The same items with counts of `training`."""
    ids, counts = np.unique(training.rows["item_id"], return_counts=True)
    places = np.searchsorted(ids, items.item_ids).clip(max=len(ids) - 1)
    return replace(items, counts=np.where(ids[places] == items.item_ids, counts[places], 0))
