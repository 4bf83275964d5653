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
_CSV_BYTES_PER_ROW = 32
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


@dataclass(frozen=True)
class LogPart:
    """What is read of a file at a time."""

    path: Path
    num_rows: int
    """Of a CSV file an estimate."""
    row_groups: tuple[int, ...] | None = None
    """Of a Parquet file; None: the whole file."""


def event_log_parts(path: Path, max_rows: int) -> list[LogPart]:
    """`path` in parts of at most `max_rows`, as far as its row groups allow; nothing but its metadata is read.

    Only a Parquet file that gives every event's id comes in parts: an id that is derived counts occurrences in the whole
    file. Raises InvalidInteraction when the file cannot be read.
    """
    if path.suffix != ".parquet":
        return [LogPart(path, path.stat().st_size // _CSV_BYTES_PER_ROW)]
    with _at_fault(f"{path}: cannot be read"):
        metadata = pyarrow.parquet.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    if not all(map(_gives_event_ids, groups)):
        return [LogPart(path, metadata.num_rows)]
    parts: list[LogPart] = []
    for number, group in enumerate(groups):
        if parts and parts[-1].num_rows + group.num_rows <= max_rows:
            last = parts.pop()
            numbers, num_rows = (*(last.row_groups or ()), number), last.num_rows + group.num_rows
        else:
            numbers, num_rows = (number,), group.num_rows
        parts.append(LogPart(path, num_rows, numbers))
    return parts


def _gives_event_ids(group: pyarrow.parquet.RowGroupMetaData) -> bool:
    columns = [group.column(number) for number in range(group.num_columns)]
    return any(
        column.path_in_schema == "event_id"
        and column.statistics is not None
        and column.statistics.null_count == 0
        for column in columns
    )


def read_event_log_part(part: LogPart) -> EventLog:
    """One part, by itself in event-time order. Raises as `read_event_log` does."""
    if part.row_groups is None:
        return read_event_log(part.path)
    fault = _at_fault(f"{part.path}: cannot be read")
    with fault, pyarrow.parquet.ParquetFile(part.path) as file:
        table = file.read_row_groups(part.row_groups)
    return _event_log(part.path, table)


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
            first = pc.index(pc.is_null(column), True).as_py()
            raise InvalidInteraction(
                f"{path}: column {name} is empty in row {first}"
                + (f" and {column.null_count - 1} more" if column.null_count > 1 else "")
            )
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
    texts = _texts(path, table, "user_id")
    user_ids = []
    for text in dict.fromkeys(texts):
        _check_text(path, texts, text, check_user_id)
        user_ids.append(text or "")
    indices: dict[str | None, int] = dict(zip(user_ids, range(len(user_ids)), strict=True))
    return user_ids, np.fromiter(map(indices.__getitem__, texts), np.int64, len(texts))


def _check_text(
    path: Path, texts: list[str | None], text: str | None, check: Callable[[str], None]
) -> None:
    """`check` one of the `texts` of a column; the error names the first row that has it."""
    try:
        check(text or "")
    except InvalidInteraction as error:
        raise InvalidInteraction(f"{path}: row {texts.index(text)}: {error}") from error


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
    texts = _texts(path, table, "event_id")
    longest = max(map(len, filter(None, texts)), default=0)
    if longest * _MAX_BYTES_PER_CHARACTER > MAX_EVENT_ID_BYTES:
        for text in filter(None, texts):
            _check_text(path, texts, text, check_event_id)
    if all(texts):
        return [text for text in texts if text]
    return [own or other for own, other in zip(texts, derived, strict=True)]


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
