"""Complete Journey as a ranking task: every basket of weeks 49 to 53, all items with five rows or more."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from examples.complete_journey.dataset import prepare_dataset
from model.catalogue import ItemTable, collect_items
from model.training.histories import Histories, Index, build_histories
from state.event_log import EventLog, read_event_log

CACHE = Path(".cache/complete-journey")
MIN_ITEM_ROWS = 5
# The store's weeks begin at midnight in New York.
TRAINING_ENDS_MS = int(np.datetime64("2017-10-30T04:00").astype("datetime64[ms]").astype(np.int64))
TEST_BEGINS_MS = int(np.datetime64("2017-11-27T05:00").astype("datetime64[ms]").astype(np.int64))


@dataclass(frozen=True)
class Task:
    """What is ranked, for whom, and what may be learned from."""

    training: EventLog
    """Weeks 1 to 44."""
    histories: Histories
    """All weeks: the context of a test basket is everything before it."""
    cuts: Index
    """Starts of the test baskets that hold any of the items."""
    items: ItemTable
    """All that is ranked; counts are those of the training weeks."""
    items_path: Path


def load_task() -> Task:
    """Prepare the files, once, and read them."""
    dataset = prepare_dataset(CACHE)
    everything = CACHE / "everything.parquet"
    if not everything.exists():
        parts = [dataset.history, dataset.live, dataset.future]
        tables = [pyarrow.parquet.read_table(part) for part in parts]
        pyarrow.parquet.write_table(pa.concat_tables(tables), everything)
    log = read_event_log(everything)
    items = collect_items(log.rows, MIN_ITEM_ROWS, dataset.items)
    training = _until(log, TRAINING_ENDS_MS)
    histories = build_histories(log)
    return Task(
        training,
        histories,
        _test_cuts(histories, items),
        replace(items, counts=_counts(training, items)),
        dataset.items,
    )


def _until(log: EventLog, end_ms: int) -> EventLog:
    kept = np.flatnonzero(log.rows["event_time_ms"] < end_ms)
    ids = [log.event_ids[i] for i in kept]
    return EventLog(log.user_ids, log.user_index[kept], ids, log.rows[kept])


def _counts(log: EventLog, items: ItemTable) -> Index:
    ids, counts = np.unique(log.rows["item_id"], return_counts=True)
    places = np.searchsorted(ids, items.item_ids).clip(max=len(ids) - 1)
    return np.where(ids[places] == items.item_ids, counts[places], 0)


def _test_cuts(histories: Histories, items: ItemTable) -> Index:
    ranked = np.isin(histories.rows["item_id"], items.item_ids)
    ends = histories.basket_end
    cuts = np.unique(ends - histories.basket_size)
    cuts = cuts[histories.rows["event_time_ms"][cuts] >= TEST_BEGINS_MS]
    num_ranked = np.append(0, np.cumsum(ranked))
    return cuts[num_ranked[ends[cuts]] > num_ranked[cuts]]
