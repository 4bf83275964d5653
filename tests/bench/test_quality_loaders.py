"""Data sets of the quality bench: files as they are handed out, made up and tiny."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from bench.quality import event_files, events, kuairand
from bench.quality.describe import describe
from bench.quality.event_files import EventFiles, parsed_columns
from bench.quality.registry import RANKERS, TASKS, checked_names, make_ranker
from bench.quality.sequences import SequenceFiles, load_sequences
from bench.quality.sources import DataSetUnusable, data_file
from bench.quality.task import Ranker
from state.interaction import DISLIKE_MASK, KIND_NAMES
from state.segments import HistoryConfig

SEGMENTS = HistoryConfig(recent_len=2, mid_term_len=4, chunk_len=2)


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMSTREAM_DATA", str(tmp_path))
    return tmp_path


def write(path: Path, **columns: Any) -> tuple[str, str]:
    pyarrow.parquet.write_table(pa.table(columns), path)
    return path.name, hashlib.sha256(path.read_bytes()).hexdigest()


def sequence_files(data: Path) -> SequenceFiles:
    """Two users of items that the items' file numbers otherwise."""
    return SequenceFiles(
        name="tiny",
        sequences=write(
            data / "sequences.parquet",
            user=[1, 1, 1, 1, 2, 2, 2],
            pos=[0, 1, 2, 3, 0, 1, 2],
            item=[30, 10, 20, 40, 20, 30, 10],
        ),
        items=write(
            data / "items.parquet",
            own_id=[10, 20, 30, 40],
            title=["ten", "twenty", "thirty", "forty"],
            genres=["a", "b", "a", None],
        ),
        item_column="own_id",
        tag_column="genres",
        source="made up",
        licence="none",
        segments=SEGMENTS,
    )


def test_sequences_are_read_in_order_with_their_items(data: Path) -> None:
    task = load_sequences(sequence_files(data))
    ids = task.histories.rows["item_id"]
    assert ids.tolist() == [30, 10, 20, 40, 20, 30, 10]
    assert ids[task.cuts].tolist() == [40, 10]
    assert ids[task.validation_cuts].tolist() == [20, 30]
    assert sorted(task.training.rows["item_id"].tolist()) == [10, 20, 30]
    assert task.items.counts.tolist() == [1, 1, 1, 0]
    assert task.items.titles == ["ten a", "twenty b", "thirty a", "forty"]
    tags = dict(zip(task.items.item_ids.tolist(), task.items.tags.tolist(), strict=True))
    assert tags[10] == tags[30] != tags[20]
    assert not task.repeats
    assert len(np.unique(task.histories.rows["event_time_ms"][:4])) == 4


def test_a_changed_file_is_refused_with_both_sums(data: Path) -> None:
    files = sequence_files(data)
    expected = files.sequences[1]
    write(data / "sequences.parquet", user=[1], pos=[0], item=[10])
    with pytest.raises(DataSetUnusable, match="sequences.parquet") as refused:
        load_sequences(files)
    found = hashlib.sha256((data / "sequences.parquet").read_bytes()).hexdigest()
    assert expected in str(refused.value)
    assert found in str(refused.value)


def test_missing_data_say_what_to_set(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataSetUnusable, match=r"gone.parquet: no such file; GEMSTREAM_DATA is"):
        data_file("gone.parquet", "")
    monkeypatch.delenv("GEMSTREAM_DATA")
    with pytest.raises(DataSetUnusable, match="GEMSTREAM_DATA is not set"):
        data_file("gone.parquet", "")


def kuairand_files(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    day = 86_400_000
    test_ms, validation_ms = kuairand.TEST_BEGINS_MS, kuairand.VALIDATION_BEGINS_MS
    names = ("is_click", "is_like", "is_follow", "is_comment", "is_forward")
    zeros = dict.fromkeys(names, [0] * 5)
    log = write(
        data / "events.parquet",
        user_id=[7, 7, 7, 8, 8],
        video_id=[0, 1, 2, 1, 0],
        time_ms=[
            validation_ms - day,
            validation_ms + 5,
            test_ms + 5,
            test_ms + 9,
            validation_ms - 9,
        ],
        play_time_ms=[5, 20_000, 30_000, 10, 20_000],
        duration_ms=[9_000] * 5,
        long_view=[0, 1, 1, 0, 1],
        is_hate=[1, 0, 0, 0, 0],
        **zeros,
    )
    items = write(
        data / "items.parquet",
        video_id=[2, 0, 1, 3],
        author_id=[22, 20, 21, 23],
        tag=["39", "unknown", "5,7", None],
    )
    earlier = write(
        data / "earlier.parquet",
        user_id=[7],
        history_len=[10],
        last_time_ms=[kuairand.EARLIER_BEGIN_MS + 10 * day],
        watch_seq=[[3, 3, 1]],
        long_watch_seq=[[1]],
    )
    monkeypatch.setattr(kuairand, "EVENTS", log)
    monkeypatch.setattr(kuairand, "ITEMS", items)
    monkeypatch.setattr(kuairand, "EARLIER", earlier)


def test_kuairand_watches_follow_earlier_ones_and_long_views_are_targets(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kuairand_files(data, monkeypatch)
    task = kuairand.load_task()
    rows = task.histories.rows
    assert rows["item_id"].tolist() == [4, 4, 2, 1, 2, 3, 1, 2]
    assert rows["author_id"].tolist() == [23, 23, 21, 20, 21, 22, 20, 21]
    assert rows["tag"].tolist() == [0, 0, 6, 0, 6, 40, 0, 6]
    assert (np.diff(rows["event_time_ms"][:3]) == 86_400_000).all()
    long_view = 1 << KIND_NAMES.index("long_view")
    assert ((rows["kinds"] & long_view) != 0).tolist() == [0, 0, 1, 0, 1, 1, 1, 0]
    assert rows["kinds"][3] & DISLIKE_MASK
    assert task.cuts.tolist() == [5]
    assert task.targets(5).tolist() == [3]
    assert task.validation_cuts.tolist() == [4]
    assert len(task.training.rows) == 5


def events_csv(path: Path) -> Path:
    lines = ["uid,sku,n"]
    lines += [f"{user},{n % 3 + 1},{n}" for user in "abcdef" for n in range(6)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_any_log_is_a_task_with_its_columns_named(data: Path) -> None:
    columns = parsed_columns("user_id=uid,item_id=sku,position=n")
    path = events_csv(data / "events.csv")
    task = event_files.load_task(EventFiles(path, columns=columns, protocol="leave-one-out"))
    assert len(task.cuts) == 6
    assert task.repeats
    assert (task.lengths(task.cuts) == 5).all()
    found = describe(task)
    assert found["interactions"] == 36
    assert found["share_of_targets_that_repeat"] == 1
    split = event_files.load_task(EventFiles(path, columns=columns))
    assert len(split.training.rows) < len(split.histories.rows)
    last_trained = split.training.rows["event_time_ms"].max()
    assert (split.histories.rows["event_time_ms"][split.validation_cuts] > last_trained).all()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("user_id=uid,item_id=sku", "no column event_time_ms; it has uid, sku, n"),
        ("user_id=uid,item_id=gone,position=n", "no column gone"),
        ("", "no column event_time_ms, item_id, user_id"),
        ("user_id=uid,item_id=sku,event_time_ms=n", "event_time_ms is 0"),
    ],
)
def test_what_is_missing_of_a_log_is_named(data: Path, columns: str, message: str) -> None:
    path = events_csv(data / "events.csv")
    with pytest.raises(DataSetUnusable, match=message):
        event_files.load_task(EventFiles(path, columns=parsed_columns(columns)))


def test_a_log_that_cannot_be_meant_is_refused(data: Path) -> None:
    with pytest.raises(DataSetUnusable, match="no such file"):
        event_files.load_task(EventFiles(data / "none.csv"))
    with pytest.raises(DataSetUnusable, match="expected 12"):
        event_files.load_task(EventFiles(events_csv(data / "events.csv"), sha256="12"))
    with pytest.raises(ValueError, match="give NAME=COLUMN"):
        parsed_columns("who=uid")
    (data / "events.txt").write_text("a")
    with pytest.raises(DataSetUnusable, match=r"\.parquet or \.csv"):
        event_files.load_task(EventFiles(data / "events.txt"))


def test_leave_one_out_refuses_what_has_no_order(data: Path) -> None:
    path = data / "events.csv"
    rows = [f"a,{n},{1_600_000_000_000 + n // 6}" for n in range(1, 25)]
    rows += [f"b,{n},{1_600_000_000_000 + n}" for n in range(1, 25)] * 4
    path.write_text("\n".join(["user_id,item_id,event_time_ms", *rows]) + "\n")
    with pytest.raises(DataSetUnusable, match="several interactions at one time"):
        event_files.load_task(EventFiles(path, protocol="leave-one-out"))


def test_names_are_checked_and_rankers_have_the_name_they_are_asked_by() -> None:
    with pytest.raises(ValueError, match="no data set nope; there are complete_journey"):
        checked_names(["ml1m", "nope"], TASKS, "data set")
    for name in RANKERS:
        if name != "gemstream":
            ranker: Ranker = make_ranker(name)
            assert ranker.name == name


def test_equal_times_keep_their_order() -> None:
    log = events.make_event_log(
        np.array([2, 1, 2]), {"item_id": np.array([5, 6, 7]), "event_time_ms": np.array([9, 3, 9])}
    )
    assert log.rows["item_id"].tolist() == [6, 5, 7]
    assert [log.user_ids[user] for user in log.user_index] == ["1", "2", "2"]
    assert len(set(log.event_ids)) == len(set(log.rows["event_hash"].tolist())) == 3
