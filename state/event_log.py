"""Reads an event log from Parquet or CSV: the input of training and of `gemstream produce`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
import xxhash

from state.errors import InvalidInteraction
from state.interaction import (
    INTERACTION,
    KIND_NAMES,
    MAX_EVENT_ID_BYTES,
    MAX_EVENT_TIME_MS,
    MIN_EVENT_TIME_MS,
    Rows,
    check_event_id,
    check_event_time,
    check_user_id,
    hash_events,
)

_REQUIRED = ("user_id", "item_id", "event_time_ms")
_OPTIONAL_NUMBERS = ("author_id", "tag", "play_time_ms", "duration_ms")
_TEXTS = ("user_id", "event_id", "kinds")
_MAX_BYTES_PER_CHARACTER = 4
_KNOWN = {*_REQUIRED, *_OPTIONAL_NUMBERS, "event_id", "kinds"}


@dataclass(frozen=True)
class EventLog:
    """Interactions of many users in event-time order; ties keep the order of the file."""

    user_ids: list[str]
    """Distinct users."""
    user_index: npt.NDArray[np.int64]
    """Per interaction, its user as an index into `user_ids`."""
    event_ids: list[str]
    rows: Rows


def read_event_log(path: Path) -> EventLog:
    """Read `path` (.parquet or .csv).

    Columns: user_id, item_id, event_time_ms; optional event_id, author_id, tag, play_time_ms, duration_ms and kinds
    (names joined by "|", such as "view|like"). Missing event ids are derived from user, item, time and occurrence, so
    that reading a file twice gives the same ids. Raises InvalidInteraction naming the column or row at fault.
    """
    return _event_log(path, _read_table(path))


def read_event_log_parts(path: Path, max_rows: int) -> Iterator[EventLog]:
    """Read `path` in parts of at most `max_rows`, each by itself in event-time order.

    Only a Parquet file that gives every event's id comes in parts: an id that is derived counts occurrences in the whole
    file. Raises as `read_event_log` does.
    """
    if path.suffix != ".parquet" or not _gives_event_ids(path):
        yield read_event_log(path)
        return
    with _at_fault(f"{path}: cannot be read"), pyarrow.parquet.ParquetFile(path) as file:
        batches = file.iter_batches(max_rows)
        while (batch := next(batches, None)) is not None:
            yield _event_log(path, pa.Table.from_batches([batch]))


def _gives_event_ids(path: Path) -> bool:
    if not path.is_file():
        return False
    with _at_fault(f"{path}: cannot be read"), pyarrow.parquet.ParquetFile(path) as file:
        if "event_id" not in file.schema_arrow.names:
            return False
        batches = file.iter_batches(columns=["event_id"])
        return all(not batch.column(0).null_count for batch in batches)


def _event_log(path: Path, table: pa.Table) -> EventLog:
    _check_columns(path, table)
    rows = np.zeros(table.num_rows, INTERACTION)
    for name in ("item_id", "event_time_ms", *_OPTIONAL_NUMBERS):
        if name in table.column_names:
            rows[name] = _numbers(path, table, name)
    _check_rows(path, rows)
    if "kinds" in table.column_names:
        rows["kinds"] = _kinds(path, table)
    user_ids, user_index = _users(path, table)
    event_ids = _event_ids(path, table, _derived_event_ids(user_ids, user_index, rows))
    rows["event_hash"] = hash_events(event_ids, rows["event_time_ms"])
    order = np.argsort(rows["event_time_ms"], kind="stable")
    return EventLog(user_ids, user_index[order], [event_ids[i] for i in order], rows[order])


def _read_table(path: Path) -> pa.Table:
    if not path.is_file():
        raise InvalidInteraction(f"{path}: no such file")
    with _at_fault(f"{path}: cannot be read"):
        if path.suffix == ".parquet":
            return pyarrow.parquet.read_table(path)
        if path.suffix == ".csv":
            # Without it a user "007" would become the number 7.
            texts = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(_TEXTS, pa.string()))
            return pyarrow.csv.read_csv(path, convert_options=texts)
    raise InvalidInteraction(f"{path}: the name must end in .parquet or .csv")


def _check_columns(path: Path, table: pa.Table) -> None:
    missing = [name for name in _REQUIRED if name not in table.column_names]
    unknown = sorted(set(table.column_names) - _KNOWN)
    if missing or unknown:
        raise InvalidInteraction(
            f"{path}: missing columns {missing}, unknown columns {unknown}; "
            f"required are {list(_REQUIRED)}, optional {sorted(_KNOWN - set(_REQUIRED))}"
        )


@contextmanager
def _at_fault(what: str) -> Iterator[None]:
    """Map what pyarrow and text decoding raise."""
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InvalidInteraction(f"{what}: {error}") from error


def _texts(path: Path, table: pa.Table, name: str) -> list[str | None]:
    with _at_fault(f"{path}: column {name}"):
        texts: list[str | None] = pc.cast(table[name], pa.string()).to_pylist()
        return texts


def _numbers(path: Path, table: pa.Table, name: str) -> npt.NDArray[np.generic]:
    with _at_fault(f"{path}: column {name}"):
        column = pc.fill_null(table[name], 0) if name not in _REQUIRED else table[name]
        if column.null_count:
            raise InvalidInteraction(f"{path}: column {name} has {column.null_count} empty values")
        target = pa.from_numpy_dtype(INTERACTION[name])
        return np.asarray(pc.cast(column, target).to_numpy())


def _check_rows(path: Path, rows: Rows) -> None:
    times = rows["event_time_ms"]
    bad = np.flatnonzero((times < MIN_EVENT_TIME_MS) | (times >= MAX_EVENT_TIME_MS))
    if len(bad):
        try:
            check_event_time(int(times[bad[0]]))
        except InvalidInteraction as error:
            raise InvalidInteraction(f"{path}: row {bad[0]}: {error}") from error
    missing = np.flatnonzero(rows["item_id"] == 0)
    if len(missing):
        raise InvalidInteraction(f"{path}: row {missing[0]}: item_id is 0, which means 'not set'")


def _kinds(path: Path, table: pa.Table) -> list[int]:
    texts = _texts(path, table, "kinds")
    masks = {text: _kind_mask(path, text or "") for text in set(texts)}
    return [masks[text] for text in texts]


def _users(path: Path, table: pa.Table) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Distinct users, and per row the index of its own."""
    indices: dict[str, int] = {}
    user_index = np.empty(table.num_rows, np.int64)
    for row, user_id in enumerate(_texts(path, table, "user_id")):
        known = None if user_id is None else indices.get(user_id)
        if known is None:
            _check_text(path, row, check_user_id, user_id or "")
            known = indices[user_id or ""] = len(indices)
        user_index[row] = known
    return list(indices), user_index


def _check_text(path: Path, row: int, check: Callable[[str], None], text: str) -> None:
    try:
        check(text)
    except InvalidInteraction as error:
        raise InvalidInteraction(f"{path}: row {row}: {error}") from error


def _kind_mask(path: Path, text: str) -> int:
    mask = 0
    for name in text.split("|") if text else ():
        if name not in KIND_NAMES[1:]:
            raise InvalidInteraction(
                f"{path}: interaction kind {name!r}; known are {list(KIND_NAMES[1:])}"
            )
        mask |= 1 << KIND_NAMES.index(name)
    return mask


def _event_ids(path: Path, table: pa.Table, derived: Iterator[str]) -> list[str]:
    """The file's own where it has them, derived ones elsewhere."""
    if "event_id" not in table.column_names:
        return list(derived)
    ids = []
    for row, (own, other) in enumerate(zip(_texts(path, table, "event_id"), derived, strict=True)):
        _check_text(path, row, check_event_id, own or other)
        ids.append(own or other)
    return ids


def _derived_event_ids(
    user_ids: list[str], user_index: npt.NDArray[np.int64], rows: Rows
) -> Iterator[str]:
    occurrences: dict[tuple[int, int, int], int] = {}
    keys = zip(
        user_index.tolist(), rows["item_id"].tolist(), rows["event_time_ms"].tolist(), strict=True
    )
    for key in keys:
        nth = occurrences[key] = occurrences.get(key, -1) + 1
        user, item_id, time_ms = key
        event_id = f"{user_ids[user]}-{item_id}-{time_ms}-{nth}"
        if len(event_id) * _MAX_BYTES_PER_CHARACTER > MAX_EVENT_ID_BYTES:
            event_id = xxhash.xxh3_128_hexdigest(event_id.encode())
        yield event_id
