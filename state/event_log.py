"""Reads an event log from Parquet or CSV: the input of training and of `gemstream produce`."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from state.errors import InvalidInteraction
from state.interaction import (
    INTERACTION,
    KIND_NAMES,
    MAX_EVENT_TIME_MS,
    MIN_EVENT_TIME_MS,
    Rows,
    check_event_time,
    hash_event_id,
)

_REQUIRED = ("user_id", "item_id", "event_time_ms")
_OPTIONAL_NUMBERS = ("author_id", "tag", "play_time_ms", "duration_ms")
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
    table = _read_table(path)
    missing = [name for name in _REQUIRED if name not in table.column_names]
    unknown = sorted(set(table.column_names) - _KNOWN)
    if missing or unknown:
        raise InvalidInteraction(
            f"{path}: missing columns {missing}, unknown columns {unknown}; "
            f"required are {list(_REQUIRED)}, optional {sorted(_KNOWN - set(_REQUIRED))}"
        )
    rows = np.zeros(table.num_rows, INTERACTION)
    for name in ("item_id", "event_time_ms", *_OPTIONAL_NUMBERS):
        if name in table.column_names:
            rows[name] = _numbers(path, table, name)
    _check_rows(path, rows)
    if "kinds" in table.column_names:
        rows["kinds"] = _kinds(path, table["kinds"])
    users = pc.cast(table["user_id"], pa.string()).combine_chunks().dictionary_encode()
    user_index = users.indices.to_numpy().astype(np.int64)
    user_ids = users.dictionary.to_pylist()
    event_ids = _event_ids(table, user_ids, user_index, rows)
    rows["event_hash"] = np.fromiter(map(hash_event_id, event_ids), np.uint64, len(event_ids))
    order = np.argsort(rows["event_time_ms"], kind="stable")
    return EventLog(user_ids, user_index[order], [event_ids[i] for i in order], rows[order])


def _read_table(path: Path) -> pa.Table:
    if not path.is_file():
        raise InvalidInteraction(f"{path}: no such file")
    try:
        if path.suffix == ".parquet":
            return pyarrow.parquet.read_table(path)
        if path.suffix == ".csv":
            return pyarrow.csv.read_csv(path)
    except pa.ArrowException as error:
        raise InvalidInteraction(f"{path}: cannot be read: {error}") from error
    raise InvalidInteraction(f"{path}: the name must end in .parquet or .csv")


def _numbers(path: Path, table: pa.Table, name: str) -> npt.NDArray[np.generic]:
    try:
        column = pc.fill_null(table[name], 0) if name not in _REQUIRED else table[name]
        if column.null_count:
            raise InvalidInteraction(f"{path}: column {name} has {column.null_count} empty values")
        target = pa.from_numpy_dtype(INTERACTION[name])
        return np.asarray(pc.cast(column, target).to_numpy())
    except pa.ArrowInvalid as error:
        raise InvalidInteraction(f"{path}: column {name}: {error}") from error


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


def _kinds(path: Path, column: pa.ChunkedArray) -> npt.NDArray[np.uint32]:
    encoded = pc.cast(column, pa.string()).combine_chunks().dictionary_encode()
    masks = [_kind_mask(path, text) for text in encoded.dictionary.to_pylist()]
    indices = pc.fill_null(encoded.indices, len(masks)).to_numpy()
    kinds: npt.NDArray[np.uint32] = np.asarray([*masks, 0], np.uint32).take(indices)
    return kinds


def _kind_mask(path: Path, text: str) -> int:
    mask = 0
    for name in text.split("|") if text else ():
        if name not in KIND_NAMES[1:]:
            raise InvalidInteraction(
                f"{path}: interaction kind {name!r}; known are {list(KIND_NAMES[1:])}"
            )
        mask |= 1 << KIND_NAMES.index(name)
    return mask


def _event_ids(
    table: pa.Table, user_ids: list[str], user_index: npt.NDArray[np.int64], rows: Rows
) -> list[str]:
    if "event_id" in table.column_names:
        return [str(value) for value in pc.cast(table["event_id"], pa.string()).to_pylist()]
    occurrences: dict[tuple[int, int, int], int] = {}
    ids = []
    keys = zip(
        user_index.tolist(), rows["item_id"].tolist(), rows["event_time_ms"].tolist(), strict=True
    )
    for key in keys:
        nth = occurrences[key] = occurrences.get(key, -1) + 1
        user, item_id, time_ms = key
        ids.append(f"{user_ids[user]}-{item_id}-{time_ms}-{nth}")
    return ids
