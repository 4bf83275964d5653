"""A user's own event log as a task: any Parquet or CSV file, its columns named or mapped."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from bench.quality.events import counted_in, times_by_position
from bench.quality.protocols import cuts_between, leave_one_out, until
from bench.quality.sources import CACHE, DataSetUnusable
from bench.quality.task import Provenance, Task
from model.catalogue import ItemTable, collect_items
from model.errors import ModelError
from model.training.histories import build_histories
from state.errors import InvalidInteraction
from state.event_log import EventLog, read_event_log
from state.interaction import MAX_EVENT_TIME_MS
from state.segments import HistoryConfig

NAME = "events"
POSITION = "position"
_REQUIRED = ("user_id", "item_id", "event_time_ms")
_OPTIONAL = ("event_id", "author_id", "tag", "play_time_ms", "duration_ms", "kinds")
_TEST_SHARE, _VALIDATION_SHARE = 0.1, 0.1
_MIN_ITEM_ROWS = 5


@dataclass(frozen=True)
class EventFiles:
    """What a user gives."""

    events: Path
    items: Path | None = None
    columns: tuple[tuple[str, str], ...] = ()
    """Pairs of a name as `gemstream train` knows it and the file's own. "position" stands for event_time_ms where there are
    no times."""
    protocol: Literal["time-split", "leave-one-out"] = "time-split"
    sha256: str | None = None
    """Of the events' file; None: not checked."""


def load_task(files: EventFiles) -> Task:
    """Read the files. Raises DataSetUnusable naming the file, the column or the row at fault."""
    digest = _digest(files)
    directory = CACHE / f"{NAME}-{digest[:12]}"
    directory.mkdir(parents=True, exist_ok=True)
    try:
        log = read_event_log(_with_known_names(files, directory))
        items = collect_items(log.rows, _MIN_ITEM_ROWS, files.items)
        return _split(files, log, items, _items_path(files, items, directory), digest)
    except (InvalidInteraction, ModelError) as error:
        raise DataSetUnusable(str(error)) from error


def parsed_columns(text: str) -> tuple[tuple[str, str], ...]:
    """From "user_id=uid,item_id=sku". Raises ValueError."""
    pairs = [tuple(pair.split("=", 1)) for pair in text.split(",") if pair]
    known = (*_REQUIRED, *_OPTIONAL, POSITION)
    for pair in pairs:
        if len(pair) != 2 or pair[0] not in known:
            raise ValueError(f"{'='.join(pair)!r}: give NAME=COLUMN; names are {', '.join(known)}")
    return tuple((name, column) for name, column in pairs)


def _digest(files: EventFiles) -> str:
    if not files.events.is_file():
        raise DataSetUnusable(f"{files.events}: no such file")
    with files.events.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if files.sha256 is not None and found != files.sha256:
        raise DataSetUnusable(f"{files.events}: SHA-256 is {found}, expected {files.sha256}")
    return found


def _with_known_names(files: EventFiles, directory: Path) -> Path:
    """The columns that are known, under their names, as Parquet."""
    table, mapped = _read(files.events), dict(files.columns)
    needed = [name for name in _REQUIRED if not (name == "event_time_ms" and POSITION in mapped)]
    own = {name: mapped.get(name, name) for name in (*needed, *_OPTIONAL)}
    wanted = {*needed, *mapped}
    missing = [
        mapped.get(name, name)
        for name in wanted
        if mapped.get(name, name) not in table.column_names
    ]
    if missing:
        raise DataSetUnusable(
            f"{files.events}: no column {', '.join(sorted(missing))}; it has {', '.join(table.column_names)}. "
            f"Say which is which, such as --columns {','.join(f'{name}=...' for name in _REQUIRED)}"
        )
    columns = {n: table[column] for n, column in own.items() if column in table.column_names}
    if POSITION in mapped:
        positions = table[mapped[POSITION]].to_numpy()
        columns["event_time_ms"] = pa.array(times_by_position(positions - positions.min()))
    columns["user_id"] = columns["user_id"].cast(pa.string())
    path = directory / "events.parquet"
    pyarrow.parquet.write_table(pa.table(columns), path)
    return path


def _read(path: Path) -> pa.Table:
    readers = {".parquet": pyarrow.parquet.read_table, ".csv": pyarrow.csv.read_csv}
    if path.suffix not in readers:
        raise DataSetUnusable(f"{path}: the name must end in .parquet or .csv")
    try:
        return readers[path.suffix](path)
    except pa.ArrowException as error:
        raise DataSetUnusable(f"{path}: cannot be read: {error}") from error


def _items_path(files: EventFiles, items: ItemTable, directory: Path) -> Path:
    if files.items is not None:
        return files.items
    path = directory / "items.parquet"
    pyarrow.parquet.write_table(pa.table({"item_id": items.item_ids}), path)
    return path


def _split(
    files: EventFiles, log: EventLog, items: ItemTable, items_path: Path, digest: str
) -> Task:
    if files.protocol == "leave-one-out":
        training, histories, cuts, validation_cuts = leave_one_out(log)
        words = "Leave-one-out: each user's last basket tests, the one before it validates, the rest trains."
    else:
        histories = build_histories(log)
        shares = (1 - _TEST_SHARE - _VALIDATION_SHARE, 1 - _TEST_SHARE)
        ends = np.quantile(log.rows["event_time_ms"], shares).astype(np.int64).tolist()
        training = until(log, ends[0])
        validation_cuts = cuts_between(histories, items, *ends)
        cuts = cuts_between(histories, items, ends[1], MAX_EVENT_TIME_MS)
        words = "Time split: the first 80 % of the events train, the next 10 % validate, the last 10 % test."
    _, item = np.unique(histories.rows["item_id"], return_inverse=True)
    pairs = np.unique(histories.users * len(item) + item)
    return Task(
        name=NAME,
        training=training,
        histories=histories,
        cuts=cuts,
        validation_cuts=validation_cuts,
        items=counted_in(training, items),
        items_path=items_path,
        segments=HistoryConfig(recent_len=64, mid_term_len=256, chunk_len=64),
        repeats=len(pairs) < len(item),
        provenance=Provenance(
            source=f"{files.events}, SHA-256 {digest}",
            licence="yours",
            protocol=f"{words} Items with {_MIN_ITEM_ROWS} rows or more are ranked.",
        ),
    )
