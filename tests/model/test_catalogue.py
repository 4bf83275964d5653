"""The catalogue: buckets, popularity, items files and their errors."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from model.catalogue import Catalogue, CatalogueItem, collect_items
from model.errors import CatalogueError
from tests.model.worlds import make_rows


def small_catalogue() -> Catalogue:
    columns: dict[str, npt.NDArray[Any]] = {
        "item_ids": np.array([10, 20, 30, 40], np.uint64),
        "author_ids": np.array([1, 2, 3, 4], np.uint64),
        "tags": np.zeros(4, np.uint32),
        "durations_ms": np.zeros(4, np.uint32),
        "counts": np.array([5, 9, 7, 9]),
        "sids": np.array([[1, 1], [0, 2], [1, 1], [0, 1]]),
    }
    return Catalogue(columns, ["ten", "twenty", "thirty", "forty"])


def test_buckets_are_in_sid_order_and_ranked_by_popularity() -> None:
    catalogue = small_catalogue()
    assert catalogue.sids_SD.tolist() == [[0, 1], [0, 2], [1, 1]]
    buckets = [[catalogue.item(i).title for i in catalogue.bucket(s)] for s in range(3)]
    assert buckets == [["forty"], ["twenty"], ["thirty", "ten"]]
    assert catalogue.sid_counts_S.tolist() == [9, 9, 12]
    assert catalogue.sid_of_item(3) == (1, 1)
    assert catalogue.bucket_of_item.tolist() == [0, 1, 2, 2]


def test_items_are_found_by_id() -> None:
    catalogue = small_catalogue()
    found = catalogue.find(np.array([30, 99, 10, 0], np.uint64))
    assert [catalogue.item(i).item_id if i >= 0 else None for i in found] == [30, None, 10, None]


def test_popularity_breaks_ties_by_id() -> None:
    catalogue = small_catalogue()
    assert catalogue.item_ids[catalogue.by_popularity()].tolist() == [20, 40, 30, 10]


def test_fingerprint_sees_every_column() -> None:
    catalogue = small_catalogue()
    assert catalogue.fingerprint == small_catalogue().fingerprint
    changed = {name: column.copy() for name, column in catalogue.columns.items()}
    changed["tags"][0] = 1
    assert Catalogue(changed, catalogue.titles).fingerprint != catalogue.fingerprint


def test_an_item_twice_is_refused() -> None:
    columns = {name: column.copy() for name, column in small_catalogue().columns.items()}
    columns["item_ids"][1] = columns["item_ids"][0]
    with pytest.raises(CatalogueError, match="twice"):
        Catalogue(columns, [""] * 4)


def test_frequent_items_are_kept_with_what_their_newest_row_says() -> None:
    rows = make_rows(6)
    rows["item_id"] = [1, 2, 1, 2, 3, 1]
    rows["tag"] = [1, 2, 3, 4, 5, 6]
    items = collect_items(rows, min_count=2, items_path=None)
    assert items.item_ids.tolist() == [1, 2]
    assert items.counts.tolist() == [3, 2]
    assert items.tags.tolist() == [6, 4]
    with pytest.raises(CatalogueError, match="no item has 4 rows"):
        collect_items(rows, min_count=4, items_path=None)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_an_items_file_overrides_and_names(tmp_path: Path, suffix: str) -> None:
    table = pa.table({"item_id": [2, 77], "title": ["two", "unseen"], "author_id": [9, 9]})
    path = tmp_path / f"items{suffix}"
    if suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    else:
        pyarrow.parquet.write_table(table, path)
    rows = make_rows(4)
    rows["item_id"], rows["author_id"], rows["tag"], rows["duration_ms"] = [1, 2, 1, 2], 3, 4, 5
    items = collect_items(rows, 2, path)
    catalogue = items.with_sids(np.array([[0], [1]]))
    assert list(catalogue) == [
        CatalogueItem(1, author_id=3, tag=4, title="", duration_ms=5),
        CatalogueItem(2, author_id=9, tag=4, title="two", duration_ms=5),
    ]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"item_id": [1], "colour": [2]}, "colour"),
        ({"title": ["x"]}, "item_id is required"),
        ({"item_id": [1], "author_id": [-1]}, "column author_id"),
    ],
    ids=["unknown", "missing", "negative"],
)
def test_unusable_items_files_are_refused(
    tmp_path: Path, columns: dict[str, list[object]], message: str
) -> None:
    path = tmp_path / "items.parquet"
    pyarrow.parquet.write_table(pa.table(columns), path)
    rows = make_rows(2)
    with pytest.raises(CatalogueError, match=message):
        collect_items(rows, 1, path)


def test_missing_items_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="no such file"):
        collect_items(make_rows(2), 1, tmp_path / "none.csv")
    (tmp_path / "items.txt").write_text("x")
    with pytest.raises(CatalogueError, match="must end in"):
        collect_items(make_rows(2), 1, tmp_path / "items.txt")
