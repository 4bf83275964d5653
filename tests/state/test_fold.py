"""The fold: the same state whatever the split, and every boundary where the rule says."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, strategies as st

from state.fold import fold
from state.interaction import Rows, empty_rows
from state.segments import HistoryConfig
from state.user_state import UserMeta
from tests.state.builders import SMALL, START_MS, make_rows


@dataclass
class History:
    """A user folded so far, with everything that was sealed and not evicted."""

    config: HistoryConfig = SMALL
    meta: UserMeta = field(default_factory=UserMeta)
    tail: Rows = field(default_factory=empty_rows)
    chunks: dict[int, Rows] = field(default_factory=dict)
    counts: list[int] = field(default_factory=lambda: [0, 0, 0])
    moves: int = 0

    def add(self, rows: Rows) -> "History":
        folded = fold(self.meta, self.tail, rows, self.config, self.sealed_rows)
        self.meta, self.tail = folded.meta, folded.tail
        self.chunks.update(folded.sealed)
        for position in folded.evicted:
            self.chunks.pop(position, None)
        for index, name in enumerate(("applied", "duplicates", "late")):
            self.counts[index] += getattr(folded, name)
        self.moves += folded.boundary_moved
        return self

    def sealed_rows(self) -> Rows:
        return np.concatenate([empty_rows(), *(self.chunks[key] for key in sorted(self.chunks))])

    def all_rows(self) -> Rows:
        return np.concatenate([self.sealed_rows(), self.tail])

    def same_as(self, other: "History") -> bool:
        return (
            self.meta == other.meta
            and self.counts == other.counts
            and sorted(self.chunks) == sorted(other.chunks)
            and np.array_equal(self.all_rows(), other.all_rows())
        )


events = st.lists(
    st.tuples(
        st.integers(0, 60), st.integers(1, 40)
    ),  # time, event hash: ties and repeats are common
    max_size=80,
)


def rows_of(log: list[tuple[int, int]]) -> Rows:
    """An event hash stands for one interaction with one item: a repeated event is equal in every feature."""
    rows = make_rows([time for time, _ in log], [event_hash for _, event_hash in log])
    rows["item_id"] = rows["event_hash"]
    rows["author_id"] = 0
    return rows


@given(events, st.lists(st.integers(1, 20), max_size=30), st.sampled_from(["store", "drop"]))
def test_any_split_gives_the_same_state(
    log: list[tuple[int, int]], sizes: list[int], late: str
) -> None:
    config = HistoryConfig(recent_len=4, mid_term_len=12, chunk_len=3, max_history=30, late=late)  # type: ignore[arg-type]
    rows = rows_of(log)
    one_by_one = History(config)
    for index in range(len(rows)):
        one_by_one.add(rows[index : index + 1])
    split, start = History(config), 0
    for size in sizes:
        split.add(rows[start : start + size])
        start += size
    split.add(rows[start:])
    assert split.same_as(one_by_one)
    assert History(config).add(rows).same_as(one_by_one)


@given(st.permutations(range(14)))
def test_order_within_a_poll_does_not_matter_for_distinct_times(order: list[int]) -> None:
    config = HistoryConfig(recent_len=20, mid_term_len=30, chunk_len=10, max_history=50)
    rows = make_rows(list(range(14)))
    shuffled = History(config).add(rows[order])
    assert shuffled.same_as(History(config).add(rows))


@given(events, st.integers(1, 20), st.sampled_from(["store", "drop"]))
def test_reading_again_changes_nothing(log: list[tuple[int, int]], size: int, late: str) -> None:
    """However long the log is, as long as nothing left the history."""
    config = HistoryConfig(recent_len=4, mid_term_len=12, chunk_len=3, max_history=90, late=late)  # type: ignore[arg-type]
    rows = rows_of(log)
    rows["event_hash"] = (
        rows["item_id"] * 100 + rows["event_time_ms"] - START_MS
    )  # one id, one content
    history = History(config).add(rows)
    meta, stored = history.meta, history.all_rows()
    for start in range(0, len(rows), size):
        history.add(rows[start : start + size])
    assert history.meta == meta
    assert np.array_equal(history.all_rows(), stored)


def test_the_same_item_at_another_time_is_another_interaction() -> None:
    rows = make_rows(list(range(20)))
    again = rows.copy()
    again["event_time_ms"] += 1_000
    again["event_hash"] += 1_000
    assert History().add(rows).add(again).meta.length == 40


def test_ties_keep_offset_order() -> None:
    history = History().add(make_rows([5, 5, 5]))
    assert history.tail["item_id"].tolist() == [1, 2, 3]


def test_late_interaction_goes_to_its_place_in_the_tail() -> None:
    history = History().add(make_rows([10, 20, 30])).add(make_rows([15], first_item=9))
    assert history.tail["item_id"].tolist() == [1, 9, 2, 3]
    assert history.counts == [4, 0, 0]


@pytest.mark.parametrize(("late", "kept"), [("store", 8), ("drop", 7)])
def test_older_than_every_open_place_is_counted(late: str, kept: int) -> None:
    config = HistoryConfig(recent_len=4, mid_term_len=12, chunk_len=3, max_history=30, late=late)  # type: ignore[arg-type]
    history = History(config).add(make_rows([10, 20, 30, 40, 50, 60, 70]))
    assert sorted(history.chunks) == [0]
    history.add(make_rows([1], first_item=99))
    assert history.meta.length == kept
    assert history.counts[2] == 1
    assert (99 in history.tail["item_id"].tolist()) == (late == "store")


@pytest.mark.parametrize(
    ("length", "boundary", "tail_start", "first"),
    [
        (1, 0, 0, 0),
        (255, 0, 0, 0),
        (256, 0, 0, 0),
        (257, 0, 0, 0),
        (511, 0, 0, 0),
        (512, 0, 256, 0),
        (5_000, 0, 4_608, 0),
        (5_255, 0, 4_864, 0),
        (5_256, 256, 4_864, 0),
        (100_000, 94_976, 99_584, 0),
        (100_001, 94_976, 99_584, 256),
        (250_000, 244_992, 249_600, 150_016),
    ],
)
def test_boundaries_stand_where_the_rule_says(
    length: int, boundary: int, tail_start: int, first: int
) -> None:
    history = History(HistoryConfig())
    for start in range(0, length, 7_000):
        history.add(make_rows(list(range(start, min(length, start + 7_000))), first_item=start + 1))
    assert history.meta.length == history.meta.version == length
    assert history.meta.lifecycle_boundary == boundary
    assert history.meta.tail_start == tail_start
    assert history.meta.first_position == first
    rows = history.all_rows()
    assert rows["item_id"].tolist() == list(range(first + 1, length + 1))
    assert length - tail_start >= min(length, 256)


def test_boundary_moves_once_per_chunk() -> None:
    history = History()
    for index in range(27):
        history.add(make_rows([index], first_item=index + 1))
    assert history.moves == (27 - 12) // 3
