"""Deltas applied one after the other are what a full read gives, whatever happened in between."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from state.chunk_codec import decode_rows
from state.errors import StaleDelta
from state.key_value_store import MemoryStore
from state.keys import user_prefix
from state.seen_items import KnownSeen
from state.segments import HistoryConfig
from state.summary import Summary
from state.user_delta import Known, UserDelta, UserSegments, apply_delta, decode_delta
from state.user_records import read_chunks, scan_user
from state.user_state import UserMeta
from state.user_store import UserStore
from tests.state.builders import SMALL, arrive, make_rows
from tests.state.test_forget import Asked, Entry, Happened, arrivals_of
from tests.state.test_forget_properties import growing, histories, logs

steps = st.lists(st.tuples(st.integers(1, 40), st.booleans(), st.booleans()), max_size=30)
"""Per poll: how many entries, whether a summary is rolled on after it, whether the reader looks."""


def read(store: UserStore, previous: UserSegments | None) -> UserSegments | None:
    """What a reader has after asking for a delta."""
    stored = store.read_user("ann", "v1", previous.known if previous else None)
    return None if stored is None else apply_delta(previous, decode_delta("ann", stored))


def assert_equal(actual: UserSegments | None, expected: UserSegments | None) -> None:
    """Byte by byte."""
    assert (actual is None) == (expected is None)
    if actual is None or expected is None:
        return
    assert actual.meta == expected.meta
    assert actual.hole_end == expected.hole_end
    assert list(actual.chunks) == list(expected.chunks)
    for position, rows in expected.chunks.items():
        assert actual.chunks[position].tobytes() == rows.tobytes()
    assert actual.tail.tobytes() == expected.tail.tobytes()
    assert (actual.summary is None) == (expected.summary is None)
    if actual.summary is not None and expected.summary is not None:
        assert actual.summary.boundary == expected.summary.boundary
        assert actual.summary.tokens.tobytes() == expected.summary.tokens.tobytes()


def roll_on(store: UserStore, num_chunks: int) -> None:
    """A summary that says what it was made of."""
    rolled = store.read_rolled("ann", "v1", num_chunks)
    if rolled is None or not rolled.chunks:
        return
    summary = Summary(
        bundle_version="v1",
        boundary=rolled.end_boundary,
        count=1,
        accumulators=b"sums",
        tokens=np.full((1, 2), rolled.end_boundary + 1_000 * rolled.epoch, np.float32),
        built_at_ms=1,
    )
    store.put_summary("ann", summary, rolled.base_boundary, rolled.epoch)


@settings(deadline=None)
@given(logs, st.booleans(), steps, histories)
def test_deltas_give_what_a_full_read_gives(
    log: list[Entry], grows: bool, polls: list[tuple[int, bool, bool]], history: HistoryConfig
) -> None:
    log = growing(log) if grows else log
    store, copy, start = UserStore(MemoryStore(), history, 0), None, 0
    for size, rolls, looks in [*polls, (len(log), True, True), (1, False, True)]:
        end = min(len(log), start + size)
        store.apply(arrivals_of(log, start, end))
        start = end
        if rolls:
            roll_on(store, size % 3 + 1)
        if looks:
            copy = read(store, copy)
            assert_equal(copy, read(store, None))


@settings(deadline=None)
@given(logs, st.data(), histories)
def test_a_copy_of_any_moment_goes_on_from_any_other(
    log: list[Entry], data: st.DataObject, history: HistoryConfig
) -> None:
    """Of a node that is further on, too, whose state the next one has yet to come to."""
    log = growing(log)
    moments = []
    for end in data.draw(st.tuples(*[st.integers(0, len(log))] * 2)):
        store = UserStore(MemoryStore(), history, 0)
        store.apply(arrivals_of(log, 0, end))
        roll_on(store, data.draw(st.integers(1, 9)))
        moments.append(store)
    before, now = moments
    assert_equal(read(now, read(before, None)), read(now, None))


def grown(count: int, history: HistoryConfig = SMALL) -> UserStore:
    store = UserStore(MemoryStore(), history, 0)
    store.apply(arrive(make_rows(list(range(count)))))
    return store


def known_of(store: UserStore) -> Known:
    copy = read(store, None)
    assert copy is not None
    return copy.known


def test_only_what_is_new_is_read() -> None:
    store = grown(20)  # boundary 6, tail from 15 on
    roll_on(store, 9)
    known = known_of(store)
    same = store.read_user("ann", "v1", known)
    assert same is not None
    assert (same.chunks, same.tail, same.summary) == ([], [], None)
    assert same.history_unchanged
    assert same.summary_unchanged
    store.apply(arrive(make_rows([20, 21], first_item=21), first_offset=20))
    newer = store.read_user("ann", "v1", known)
    assert newer is not None
    delta = decode_delta("ann", newer)
    assert list(delta.chunks) == [15]
    assert len(delta.tail) == 4
    assert delta.summary_unchanged
    assert not delta.unchanged


def test_another_bundle_gets_its_own_summary_and_the_history_stays() -> None:
    store = grown(20)
    roll_on(store, 9)
    known = replace(known_of(store), summary_boundary=0)
    stored = store.read_user("ann", "v1", known)
    assert stored is not None
    assert stored.summary is not None
    assert stored.history_unchanged
    without = store.read_user("ann", "v2", known)
    assert without is not None
    assert without.summary is None
    assert not without.summary_unchanged
    assert decode_delta("ann", without).unchanged


def test_what_was_known_before_a_hole_counts_for_nothing() -> None:
    """Records were lost, so that other interactions may lie at the same positions."""
    store = grown(20)
    known = known_of(store)
    store.record_hole(100, 1)
    stored = store.read_user("ann", "v1", known)
    assert stored is not None
    assert len(stored.chunks) == 3
    assert not stored.history_unchanged
    assert UserStore(store.database, SMALL, 0).read_user("ann", "v1") == stored


def test_a_delta_for_another_copy_is_refused() -> None:
    store = grown(20)
    known = known_of(store)
    store.apply(arrive(make_rows(list(range(20, 23)), first_item=21), first_offset=20))
    stored = store.read_user("ann", "v1", known)
    assert stored is not None
    delta = decode_delta("ann", stored)
    for copy in (read(grown(13), None), None):
        with pytest.raises(StaleDelta):
            apply_delta(copy, delta)
    for incomplete in (
        UserDelta(user_id="ann", meta=UserMeta(version=3), history_unchanged=True),
        UserDelta(user_id="ann", meta=UserMeta(), summary_unchanged=True),
    ):
        with pytest.raises(StaleDelta):
            apply_delta(None, incomplete)


def test_deletion_and_return() -> None:
    store = grown(20)
    copy = read(store, None)
    store.apply(arrivals_of([Asked(0, 50)], 0, 1, offset=20))
    assert read(store, copy) is None
    store.apply(arrive(make_rows(list(range(60, 90)), first_item=60), first_offset=21))
    assert_equal(read(store, copy), read(store, None))


def seen(store: UserStore, known: KnownSeen | None = None) -> tuple[int, int, list[int]]:
    answer = store.read_seen("ann", known)
    assert answer is not None
    return answer.start, answer.end, answer.item_ids.tolist()


def test_seen_items_are_those_of_the_kept_lifecycle_segment() -> None:
    store = grown(20)
    assert seen(store) == (0, 6, [1, 2, 3, 4, 5, 6])
    assert seen(grown(5)) == (0, 0, [])
    assert store.read_seen("bob") is None
    first = store.read_seen("ann")
    assert first is not None
    store.apply(arrive(make_rows(list(range(20, 26)), first_item=21), first_offset=20))
    assert seen(store, first.known) == (6, 12, [7, 8, 9, 10, 11, 12])
    assert seen(store, replace(first.known, epoch=1)) == (0, 12, list(range(1, 13)))
    assert seen(store, replace(first.known, end=99)) == (0, 12, list(range(1, 13)))
    store.apply(arrive(make_rows(list(range(26, 60)), first_item=50), first_offset=26))
    assert seen(store, first.known)[0] == 30  # what it knew has left the history


@settings(deadline=None)
@given(logs, histories, st.integers(1, 40))
def test_seen_items_grow_with_the_boundary(
    log: list[Entry], history: HistoryConfig, size: int
) -> None:
    """Together with what was known, every item of the kept history; a slow twin looks at all chunks."""
    log = [entry for entry in growing(log) if isinstance(entry, Happened)]
    store = UserStore(MemoryStore(), history, 0)
    known, items = None, set[int]()
    for start in range(0, len(log), size):
        store.apply(arrivals_of(log, start, min(len(log), start + size)))
        answer, whole = store.read_seen("ann", known), store.read_seen("ann")
        if answer is None or whole is None:
            continue
        if answer.start == answer.first_position:
            items.clear()
        items |= set(answer.item_ids.tolist())
        known = answer.known
        kept = every_item(store, answer.first_position, answer.end)
        assert whole.item_ids.tolist() == sorted(kept)
        assert kept <= items


def every_item(store: UserStore, start: int, end: int) -> set[int]:
    prefix = user_prefix(b"ann")
    chunks = read_chunks(scan_user(store.database, prefix), prefix, start, end)
    return {item for chunk in chunks for item in decode_rows(chunk)["item_id"].tolist()}
