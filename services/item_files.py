"""Files of items to records of the topic `items`: what `gemstream catalogue add` sends."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from model.errors import CatalogueError
from protos.item_pb2 import CatalogueEntry, Item

_COLUMNS: dict[str, pa.DataType] = {
    "item_id": pa.uint64(),
    "author_id": pa.uint64(),
    "tag": pa.uint32(),
    "title": pa.string(),
    "duration_ms": pa.uint32(),
    "expires_at_ms": pa.int64(),
    "seen_with": pa.list_(pa.uint64()),
}
_READERS = {".parquet": pyarrow.parquet.read_table, ".csv": pyarrow.csv.read_csv}


def read_entries(items: Path, vectors: Path | None) -> list[CatalogueEntry]:
    """Entries in the order of their ids, with content from a file of vectors where it has one for them.

    Raises CatalogueError for files that cannot be used, and items that are there twice.
    """
    columns = _read_columns(items)
    ids = columns["item_id"]
    if twice := [one for one, other in pairwise(ids) if one == other]:
        raise CatalogueError(f"{items}: item {twice[0]} is there twice")
    if ids and ids[0] == 0:
        raise CatalogueError(f"{items}: an item has the id 0 or none; ids are 1 to 2^64 - 1")
    entries = [
        _entry(dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)
    ]
    if vectors is not None and entries:
        _add_content(entries, vectors)
    return entries


def _entry(row: dict[str, Any]) -> CatalogueEntry:
    known = {name: value for name, value in row.items() if value is not None}
    expires_at_ms, seen_with = known.pop("expires_at_ms", 0), known.pop("seen_with", [])
    return CatalogueEntry(item=Item(**known), expires_at_ms=expires_at_ms, seen_with=seen_with)


def _add_content(entries: list[CatalogueEntry], path: Path) -> None:
    from model.tokenizer.content import read_content

    ids = np.array([entry.item.item_id for entry in entries], np.uint64)
    for entry, vector in zip(entries, read_content(path, ids).numpy(), strict=True):
        if vector.any():
            entry.content.extend(vector.tolist())


def _read_columns(path: Path) -> dict[str, list[Any]]:
    """By name, sorted by item id; nulls are None."""
    if not path.is_file():
        raise CatalogueError(f"{path}: no such file")
    if path.suffix not in _READERS:
        raise CatalogueError(f"{path}: the name must end in .parquet or .csv")
    try:
        table = _READERS[path.suffix](path)
        unknown = sorted(set(table.column_names) - set(_COLUMNS))
        if unknown or "item_id" not in table.column_names:
            raise CatalogueError(
                f"{path}: columns are {table.column_names}; item_id is required, known are {list(_COLUMNS)}"
            )
        return dict(_cast(table))
    except pa.ArrowException as error:
        raise CatalogueError(f"{path}: cannot be read: {error}") from error


def _cast(table: pa.Table) -> Iterator[tuple[str, list[Any]]]:
    ids = pc.fill_null(pc.cast(table["item_id"], pa.uint64()), 0)
    order = pc.sort_indices(ids)
    yield "item_id", ids.take(order).to_pylist()
    for name in table.column_names:
        if name != "item_id":
            yield name, pc.cast(table[name], _COLUMNS[name]).take(order).to_pylist()
