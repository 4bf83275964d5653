"""The items that can be recommended, each with its SID, and the buckets of items that share one."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from model.errors import CatalogueError
from state.interaction import Rows

ITEM_COLUMNS = ("item_id", "author_id", "tag", "title", "duration_ms")
COLUMN_TYPES: dict[str, np.dtype[Any]] = {
    "item_ids": np.dtype(np.uint64),
    "author_ids": np.dtype(np.uint64),
    "tags": np.dtype(np.uint32),
    "durations_ms": np.dtype(np.uint32),
    "counts": np.dtype(np.int64),
    "sids": np.dtype(np.int64),
}
_ITERATED = 4_096
"""Items that iterating makes at a time."""


@dataclass(frozen=True)
class CatalogueItem:
    """What is known of an item besides its SID; zeros and "" mean "not known"."""

    item_id: int
    author_id: int = 0
    tag: int = 0
    title: str = ""
    duration_ms: int = 0


class Catalogue:
    """Items as columns, in the order of (SID, popularity), so that a bucket is a slice, best first.

    Shapes: N items, D levels, S distinct SIDs.
    """

    def __init__(
        self,
        columns: dict[str, npt.NDArray[Any]],
        titles: Sequence[str] | pa.Array,
        *,
        in_order: bool = False,
    ) -> None:
        """From the columns of COLUMN_TYPES (`sids` is [N, D]), in any order; `in_order`: in that of a catalogue already.

        Raises CatalogueError for missing columns, lengths that differ, no item or an item twice.
        """
        if set(columns) != set(COLUMN_TYPES):
            raise CatalogueError(
                f"columns are {sorted(columns)}; expected are {sorted(COLUMN_TYPES)}"
            )
        lengths = {len(column) for column in columns.values()} | {len(titles)}
        if len(lengths) != 1 or lengths == {0}:
            raise CatalogueError(
                f"columns have {sorted(lengths)} items; one length above 0 is needed"
            )
        self.titles_packed = pa.array(titles, pa.large_string())
        """[N]: no Python objects, which every copy of a catalogue would have to touch."""
        if not in_order:
            order = np.lexsort((columns["item_ids"], -columns["counts"], *columns["sids"].T[::-1]))
            columns = {name: column[order] for name, column in columns.items()}
            self.titles_packed = self.titles_packed.take(pa.array(order))
        self.columns: dict[str, npt.NDArray[Any]] = {
            name: columns[name].astype(dtype, copy=False) for name, dtype in COLUMN_TYPES.items()
        }
        self.item_ids: npt.NDArray[np.uint64] = self.columns["item_ids"]
        self.counts: npt.NDArray[np.int64] = self.columns["counts"]
        self._by_popularity: npt.NDArray[np.int64] | None = None
        self._index_items()
        self._index_buckets()

    def _index_items(self) -> None:
        self._by_id = np.argsort(self.item_ids)
        self._sorted_ids = self.item_ids[self._by_id]
        twice = self._sorted_ids[1:][self._sorted_ids[1:] == self._sorted_ids[:-1]]
        if len(twice):
            raise CatalogueError(f"item {twice[0]} is in the catalogue twice")

    def _index_buckets(self) -> None:
        sids: npt.NDArray[np.int64] = self.columns["sids"]
        new = np.concatenate([[True], (sids[1:] != sids[:-1]).any(1)])
        starts = np.flatnonzero(new)
        self.bucket_starts = np.append(starts, len(sids))
        """[S + 1]: where each bucket begins, and the number of items."""
        self.bucket_of_item = np.cumsum(new) - 1
        """[N]: the number of each item's SID."""
        self.sids_SD = sids[starts]
        counts = np.maximum(self.counts, 1)
        self.sid_counts_S = np.add.reduceat(counts, starts)
        self.log_share_in_bucket = np.log(counts / self.sid_counts_S[self.bucket_of_item])
        """[N]: log of an item's share of its bucket's events."""

    def __len__(self) -> int:
        """Number of items."""
        return len(self.item_ids)

    @property
    def titles(self) -> list[str]:
        """Of all items, as a list that is made for the purpose."""
        return list(self.titles_packed.to_pylist())

    def bucket(self, sid: int) -> range:
        """Items of SID number `sid`, most popular first."""
        return range(int(self.bucket_starts[sid]), int(self.bucket_starts[sid + 1]))

    def items_of(
        self, sids: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The buckets of SID numbers one behind the other, and their lengths."""
        starts = self.bucket_starts[sids]
        lengths = self.bucket_starts[sids + 1] - starts
        before = np.cumsum(lengths) - lengths
        return np.repeat(starts - before, lengths) + np.arange(lengths.sum()), lengths

    def blocked_sids(self, blocked_N: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """[S]: true for the SIDs all of whose items are blocked."""
        return np.logical_and.reduceat(blocked_N, self.bucket_starts[:-1])

    def item(self, index: int) -> CatalogueItem:
        """The item at `index`."""
        return self.items([index])[0]

    def items(self, indices: Sequence[int]) -> list[CatalogueItem]:
        """The items at `indices`."""
        columns = [
            self.columns[name][indices].tolist()
            for name in ("item_ids", "author_ids", "tags", "durations_ms")
        ]
        titles = [self.titles_packed[index].as_py() for index in indices]
        return [
            CatalogueItem(item_id, author_id, tag, title, duration_ms)
            for item_id, author_id, tag, duration_ms, title in zip(*columns, titles, strict=True)
        ]

    def sid_of_item(self, index: int) -> tuple[int, ...]:
        """The codes of the item at `index`."""
        return tuple(self.columns["sids"][index].tolist())

    def find(self, item_ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Indices of items by id; -1 where the catalogue has no such item."""
        places = np.searchsorted(self._sorted_ids, item_ids).clip(max=len(self) - 1)
        return np.where(self._sorted_ids[places] == item_ids, self._by_id[places], -1)

    def with_items(
        self, items: Sequence[CatalogueItem], sids_ND: npt.NDArray[np.int64]
    ) -> "Catalogue":
        """A catalogue with more items, of no events yet. Raises CatalogueError for an item that is there already."""
        more = {
            "item_ids": [item.item_id for item in items],
            "author_ids": [item.author_id for item in items],
            "tags": [item.tag for item in items],
            "durations_ms": [item.duration_ms for item in items],
            "counts": [0] * len(items),
            "sids": sids_ND,
        }
        columns = {
            name: np.concatenate([column, np.asarray(more[name], column.dtype)])
            for name, column in self.columns.items()
        }
        return Catalogue(columns, [*self.titles, *(item.title for item in items)])

    def by_popularity(self) -> npt.NDArray[np.int64]:
        """Indices of items, most events first; ties by item id."""
        if self._by_popularity is None:
            self._by_popularity = self._by_id[np.argsort(-self.counts[self._by_id], kind="stable")]
        return self._by_popularity

    def __iter__(self) -> Iterator[CatalogueItem]:
        """All items, in (SID, popularity) order."""
        for start in range(0, len(self), _ITERATED):
            yield from self.items(range(start, min(start + _ITERATED, len(self))))

    @property
    def fingerprint(self) -> str:
        """12 hex digits over every column and title."""
        digest = hashlib.sha256()
        for name in COLUMN_TYPES:
            digest.update(self.columns[name].tobytes())
        digest.update("\0".join(self.titles).encode())
        return digest.hexdigest()[:12]


@dataclass(frozen=True)
class ItemTable:
    """Items before they have SIDs; columns of one length, ids ascending."""

    item_ids: npt.NDArray[np.uint64]
    author_ids: npt.NDArray[np.uint64]
    tags: npt.NDArray[np.uint32]
    durations_ms: npt.NDArray[np.uint32]
    counts: npt.NDArray[np.int64]
    titles: list[str]

    def with_sids(self, sids_ND: npt.NDArray[np.int64]) -> Catalogue:
        """The catalogue of these items."""
        columns = {name: getattr(self, name) for name in COLUMN_TYPES if name != "sids"}
        return Catalogue({**columns, "sids": sids_ND}, self.titles)


def collect_items(rows: Rows, min_count: int, items_path: Path | None) -> ItemTable:
    """Items with at least `min_count` rows; an items file, where given, overrides what their newest row says.

    Raises CatalogueError when no item is frequent enough or the file cannot be used.
    """
    newest_first = rows[::-1]
    ids, newest, counts = np.unique(newest_first["item_id"], return_index=True, return_counts=True)
    kept = counts >= min_count
    if not kept.any():
        raise CatalogueError(
            f"no item has {min_count} rows or more; the most frequent has {counts.max(initial=0)}"
        )
    known = newest_first[newest[kept]]
    table = ItemTable(
        item_ids=ids[kept],
        author_ids=known["author_id"].copy(),
        tags=known["tag"].copy(),
        durations_ms=known["duration_ms"].copy(),
        counts=counts[kept].astype(np.int64),
        titles=[""] * int(kept.sum()),
    )
    if items_path is not None:
        _merge_file(table, items_path)
    return table


def _merge_file(table: ItemTable, path: Path) -> None:
    file = _read_items(path)
    if not file.num_rows:
        raise CatalogueError(f"{path}: there is no item in it")
    file_ids = _column(path, file, "item_id", pa.uint64())
    unique, counts = np.unique(file_ids, return_counts=True)
    if (counts > 1).any():
        raise CatalogueError(f"{path}: item {unique[counts > 1][0]} is in it twice")
    places = np.searchsorted(table.item_ids, file_ids).clip(max=len(table.item_ids) - 1)
    found = table.item_ids[places] == file_ids
    targets = places[found]
    for name, column, kind in (
        ("author_id", table.author_ids, pa.uint64()),
        ("tag", table.tags, pa.uint32()),
        ("duration_ms", table.durations_ms, pa.uint32()),
    ):
        if name in file.column_names:
            column[targets] = _column(path, file, name, kind)[found]
    if "title" in file.column_names:
        titles = pc.fill_null(pc.cast(file["title"], pa.string()), "").to_pylist()
        for source, target in zip(np.flatnonzero(found), targets, strict=True):
            table.titles[target] = titles[source]


def _read_items(path: Path) -> pa.Table:
    if not path.is_file():
        raise CatalogueError(f"{path}: no such file")
    readers = {".parquet": pyarrow.parquet.read_table, ".csv": pyarrow.csv.read_csv}
    if path.suffix not in readers:
        raise CatalogueError(f"{path}: the name must end in .parquet or .csv")
    try:
        table = readers[path.suffix](path)
    except pa.ArrowException as error:
        raise CatalogueError(f"{path}: cannot be read: {error}") from error
    unknown = sorted(set(table.column_names) - set(ITEM_COLUMNS))
    if unknown or "item_id" not in table.column_names:
        raise CatalogueError(
            f"{path}: columns are {table.column_names}; item_id is required, known are {list(ITEM_COLUMNS)}"
        )
    return table


def _column(path: Path, table: pa.Table, name: str, kind: pa.DataType) -> npt.NDArray[np.generic]:
    try:
        return np.asarray(pc.cast(pc.fill_null(table[name], 0), kind).to_numpy())
    except pa.ArrowInvalid as error:
        raise CatalogueError(f"{path}: column {name}: {error}") from error
