"""Event logs from files: order, identities, both formats alike."""

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from state.errors import InvalidInteraction
from state.event_log import read_event_log
from tests.state.builders import START_MS

TABLE = pa.table(
    {
        "user_id": ["b", "a", "b", "a"],
        "item_id": [1, 2, 1, 3],
        "event_time_ms": [START_MS + 5, START_MS, START_MS + 5, START_MS + 9],
        "tag": [None, 4, 5, 6],
        "kinds": ["view|like", None, "purchase", ""],
    }
)


@pytest.fixture(params=["parquet", "csv"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"events.{request.param}"
    writer = pyarrow.parquet.write_table if request.param == "parquet" else pyarrow.csv.write_csv
    writer(TABLE, path)
    return path


def test_rows_come_in_event_time_order(path: Path) -> None:
    log = read_event_log(path)
    assert [log.user_ids[user] for user in log.user_index] == ["a", "b", "b", "a"]
    assert log.rows["item_id"].tolist() == [2, 1, 1, 3]
    assert log.rows["tag"].tolist() == [4, 0, 5, 6]
    assert log.rows["kinds"].tolist() == [0, 0b1010, 0b10000000, 0]


def test_derived_event_ids_are_distinct_and_stable(path: Path) -> None:
    first, second = read_event_log(path), read_event_log(path)
    assert len(set(first.event_ids)) == 4
    assert first.event_ids == second.event_ids
    assert first.rows["event_hash"].tolist() == second.rows["event_hash"].tolist()


@pytest.mark.parametrize("name", ["events.txt", "none.parquet"])
def test_unreadable_files_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "events.txt").write_text("x")
    with pytest.raises(InvalidInteraction, match=name):
        read_event_log(tmp_path / name)


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    path.write_bytes(b"PAR1 no")
    with pytest.raises(InvalidInteraction, match="cannot be read"):
        read_event_log(path)


def test_missing_event_ids_are_derived_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    table = TABLE.append_column("event_id", pa.array(["own", None, None, ""], pa.string()))
    pyarrow.parquet.write_table(table, path)
    log = read_event_log(path)
    assert len(set(log.event_ids)) == 4
    assert "own" in log.event_ids


def test_user_ids_of_a_csv_stay_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text(f"user_id,item_id,event_time_ms\n007,1,{START_MS}\n7,2,{START_MS}\n")
    assert read_event_log(path).user_ids == ["007", "7"]


def test_long_user_ids_get_event_ids_that_fit(tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    users = ["é" * 120, "x" * 200, "é" * 120, "y"]
    pyarrow.parquet.write_table(TABLE.set_column(0, "user_id", pa.array(users)), path)
    ids = read_event_log(path).event_ids
    assert len(set(ids)) == 4
    assert max(len(event_id.encode()) for event_id in ids) <= 128


@pytest.mark.parametrize(
    ("column", "values", "phrase"),
    [
        ("user_id", pa.array(["a", None, "b", "c"]), "row 1: user_id has 0 bytes"),
        ("user_id", pa.array(["a", "x" * 300, "b", "c"]), "row 1: user_id has 300 bytes"),
        ("user_id", pa.array([b"a", b"\xff\xfe", b"b", b"c"]), "column user_id"),
        ("kinds", pa.array([["view"], [], [], []]), "column kinds"),
        ("item_id", pa.array([1, None, 2, 3]), "column item_id is empty in row 1"),
        ("tag", pa.array([-1, 0, 0, 0]), "column tag"),
    ],
)
def test_columns_at_fault_are_named(
    tmp_path: Path, column: str, values: pa.Array, phrase: str
) -> None:
    path = tmp_path / "events.parquet"
    index = TABLE.column_names.index(column)
    pyarrow.parquet.write_table(TABLE.set_column(index, column, values), path)
    with pytest.raises(InvalidInteraction, match=phrase):
        read_event_log(path)


def test_an_event_id_that_is_too_long_is_named(tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    ids = pa.array(["a", "b", "c" * 200, "d"])
    pyarrow.parquet.write_table(TABLE.append_column("event_id", ids), path)
    with pytest.raises(InvalidInteraction, match="row 2: event_id has 200 bytes"):
        read_event_log(path)
