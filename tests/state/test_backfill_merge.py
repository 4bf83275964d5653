"""Merging a backfilled history with a live one: nothing is lost or doubled, and it ends as if all had come in order."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given, settings, strategies as st

from state.backfill_merge import Merged, StoredHistory, merge_histories
from state.interaction import Rows, empty_rows, join_rows
from state.segments import HistoryConfig
from tests.state.builders import SMALL, START_MS, make_rows
from tests.state.test_fold import History

_TIMES = st.lists(st.integers(0, 120), max_size=60)


@settings(max_examples=150, deadline=None)
@given(old=_TIMES, live=_TIMES, shared=st.integers(0, 20))
def test_nothing_is_lost_or_doubled(old: list[int], live: list[int], shared: int) -> None:
    """While nothing leaves the history: every interaction once, in whatever order both came."""
    history = replace(SMALL, max_history=1_000)
    old_rows = make_rows(old)
    live_rows = join_rows([old_rows[:shared], make_rows(live, first_item=1_000)])
    merged = merge_histories(_folded(live_rows, history), _folded(old_rows, history), history)
    if merged is None:
        assert shared >= len(old)
        return
    kept = merged.outcome
    sealed = [rows for position, rows in kept.sealed]
    before = _folded(old_rows, history)
    items = join_rows([before.sealed, *sealed, kept.tail])["item_id"].tolist()
    assert sorted(items) == sorted({*old_rows["item_id"].tolist(), *live_rows["item_id"].tolist()})
    assert kept.meta.length == len(items)


_EVENTS = st.lists(st.integers(1, 60), max_size=60)
"""Event ids; each gives a time out of five, and that every field, so that many events are equal."""


@settings(max_examples=300, deadline=None)
@given(
    old=_EVENTS,
    live=_EVENTS,
    cuts=st.lists(st.integers(0, 60), max_size=4).map(sorted),
    history=st.sampled_from(
        [replace(SMALL, max_history=1_000), replace(SMALL, max_history=1_000, late="drop"), SMALL]
    ),
)
def test_only_repetitions_are_left_out_and_they_are_counted(
    old: list[int], live: list[int], cuts: list[int], history: HistoryConfig
) -> None:
    before, first = _folded(_of_events(live), history, cuts), _folded(_of_events(old), history)
    num_repeated = sum(_num_repeated(before, first, time) for time in range(5))
    merged = merge_histories(before, first, history)
    if merged is None:
        assert num_repeated == len(first.rows) or before.meta.first_position
        return
    assert merged.repeated == num_repeated
    assert merged.new == len(first.rows) - num_repeated
    after = _after(merged, first)
    length = first.meta.length + len(before.rows) - num_repeated
    assert (after.meta.length, len(after.rows)) == (length, length - history.first_position(length))
    if not after.meta.first_position:
        assert merge_histories(after, first, history) is None


def _of_events(events: list[int]) -> Rows:
    rows = make_rows([event % 5 for event in events], events)
    rows["item_id"], rows["author_id"] = 7, 0
    return rows


def _num_repeated(live: StoredHistory, old: StoredHistory, time: int) -> int:
    """How many pairs there are at most among the events of a time."""
    own_ids, old_ids = (
        each.rows["event_hash"][each.rows["event_time_ms"] == START_MS + time].tolist()
        for each in (live, old)
    )
    same = {*own_ids} & {*old_ids} - {0}
    own_left, old_left = ([each for each in ids if each not in same] for ids in (own_ids, old_ids))
    num_lost = own_left.count(0) + old_left.count(0)
    return len(same) + min(len(own_left), len(old_left), num_lost)


def _after(merged: Merged, first: StoredHistory) -> StoredHistory:
    """What is stored of the user then."""
    outcome = merged.outcome
    sealed = join_rows([first.sealed, *(rows for _, rows in outcome.sealed)])
    skipped = outcome.meta.first_position - first.meta.first_position
    return StoredHistory(outcome.meta, sealed[skipped:], outcome.tail)


@settings(max_examples=60, deadline=None)
@given(num_old=st.integers(1, 80), num_live=st.integers(0, 80))
def test_newer_events_are_folded_as_if_they_had_come_later(num_old: int, num_live: int) -> None:
    old, live = (
        make_rows([*range(num_old)]),
        make_rows([*range(200, 200 + num_live)], first_item=500),
    )
    merged = merge_histories(_folded(live, SMALL), _folded(old, SMALL), SMALL)
    if merged is None:
        assert num_live > SMALL.max_history
        return
    whole = History(SMALL)
    whole.add(join_rows([old, live]))
    same = ("length", "first_position", "lifecycle_boundary", "tail_start", "newest_event_time_ms")
    for name in same:
        assert getattr(merged.outcome.meta, name) == getattr(whole.meta, name)
    assert merged.outcome.tail["item_id"].tolist() == whole.tail["item_id"].tolist()


def _folded(rows: Rows, history: object, cuts: Sequence[int] = ()) -> StoredHistory:
    """After the polls that `cuts` makes of the rows."""
    kept = History(history)  # type: ignore[arg-type]
    for poll in np.split(rows, cuts):
        if len(poll):
            kept.add(poll)
    return StoredHistory(kept.meta, kept.sealed_rows() if len(rows) else empty_rows(), kept.tail)
