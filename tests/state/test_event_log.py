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
