"""Forgetting, whatever the log: the same state in any split, and what a history without the item would be."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import example, given, settings, strategies as st

from state.arrivals import Applied, Deletion
from state.fold import fold
from state.interaction import Rows, empty_rows, join_rows
from state.key_value_store import Family, MemoryStore
from state.segments import HistoryConfig
from state.user_fold import UserFold
from state.user_state import UserMeta
from state.user_store import UserStore
from tests.state.builders import SMALL, START_MS, stored_histories
from tests.state.test_forget import Asked, Entry, Happened, arrivals_of, row_of, watched

LONG = replace(SMALL, max_history=300)
"""Nothing leaves such a history in these tests."""
WIDE = HistoryConfig(recent_len=20, mid_term_len=30, chunk_len=5, max_history=50)
"""Its tail lies in blocks."""

item_ids, times = st.integers(1, 6), st.integers(0, 60)
users = st.sampled_from(["ann", "ann", "bob"])
happened = st.builds(Happened, item_ids, times, users)
asked = st.builds(Asked, item_ids, times, users)
deleted = st.builds(Asked, st.just(0), times, users)


def long_log(seed: int) -> list[Entry]:
    """Long enough for chunks to leave, with few requests."""
    random = np.random.default_rng(seed)
    log: list[Entry] = []
    for _ in range(200):
        item, time = int(random.integers(1, 7)), int(random.integers(0, 60))
        user = "bob" if random.random() < 0.1 else "ann"
        asks = random.random() < 0.03
        log.append(Asked(item, time, user) if asks else Happened(item, time, user))
    return log


logs = st.one_of(
    st.lists(st.one_of(*[happened] * 10, asked, deleted), max_size=80),
    st.builds(long_log, st.integers(0, 2**32)),
)
histories = st.sampled_from([SMALL, WIDE])
TO_CHUNKS_AND_BACK = [*watched(1, 1, 1, 1, 2, 2, *range(3, 11)), Asked(1, 100), Asked(2, 100)]
"""The first request moves an interaction from the tail into a chunk, the second takes it back."""


def growing(log: Sequence[Entry]) -> list[Entry]:
    """The log with times that mostly grow, so that the store appends without folding."""
    grown: list[Entry] = []
    for n, entry in enumerate(log):
        if isinstance(entry, Happened):
            grown.append(replace(entry, time=n + entry.time // 20))
        else:
            grown.append(replace(entry, until=n - entry.until // 2 + 3))
    return grown


@settings(max_examples=150, deadline=None)
@given(logs, st.booleans(), st.lists(st.integers(1, 90), max_size=20), histories)
@example(TO_CHUNKS_AND_BACK, False, [], SMALL)
def test_any_split_gives_the_same_state(
    log: list[Entry], grows: bool, sizes: list[int], history: HistoryConfig
) -> None:
    log = growing(log) if grows else log
    split, one_by_one = MemoryStore(), MemoryStore()
    store, counts, start = UserStore(split, history, 0), Applied(), 0
    for size in [*sizes, len(log)]:
        end = min(len(log), start + size)
        counts.add(store.apply(arrivals_of(log, start, end)))
        start = end
    single, single_counts = UserStore(one_by_one, history, 0), Applied()
    for index in range(len(log)):
        single_counts.add(single.apply(arrivals_of(log, index, index + 1)))
    assert stored_histories(split) == stored_histories(one_by_one)
    systems = [list(each.scan(Family.SYSTEM, b"", b"\xff")) for each in (split, one_by_one)]
    assert not log or systems[0] == systems[1]
    for name in ("interactions", "duplicates", "late", "refused", "deletions", "forgotten"):
        assert getattr(counts, name) == getattr(single_counts, name), name


@settings(deadline=None)
@given(logs, st.booleans(), st.integers(1, 20))
def test_reading_again_changes_nothing(log: list[Entry], grows: bool, size: int) -> None:
    """As long as nothing left the history; deletions of everything aside, which do it again."""
    log = [entry for entry in log if entry.item]
    log = growing(log) if grows else log
    database = MemoryStore()
    store = UserStore(database, LONG, 0)
    store.apply(arrivals_of(log, 0, len(log)))
    before = stored_histories(database)
    for start in range(0, len(log), size):
        store.apply(arrivals_of(log, start, min(len(log), start + size), len(log)))
    assert stored_histories(database) == before


@given(
    st.lists(
        st.one_of(
            *[st.builds(Happened, item_ids, st.integers(0, 2))] * 6,
            st.builds(Asked, item_ids, st.integers(-30, 5)),
        ),
        max_size=120,
    )
)
def test_the_history_is_as_if_the_forgotten_had_never_been(steps: list[Entry]) -> None:
    """Every byte of it, where nothing came late, no event twice, and nothing left the history."""
    log: list[Entry] = []
    now = 0
    for step in steps:  # times are steps forward, requests look back or a little ahead
        if isinstance(step, Happened):
            now += step.time
            log.append(replace(step, time=now))
        else:
            log.append(replace(step, until=now + step.until))
    until = {
        item: max((e.until for e in log if isinstance(e, Asked) and e.item == item), default=-1)
        for item in range(1, 7)
    }
    rows = [(n, e, row_of(e, n + 1)) for n, e in enumerate(log) if isinstance(e, Happened)]
    for n, _, row in rows:
        row["author_id"] = n  # no two are equal
    kept = join_rows([row for _, e, row in rows if e.time > until[e.item]])
    expected = fold(UserMeta(), empty_rows(), kept, LONG)

    user_fold = UserFold(UserMeta(), empty_rows(), LONG)
    by_index = {n: row for n, _, row in rows}
    for n, entry in enumerate(log):
        if isinstance(entry, Asked):
            user_fold.delete(Deletion("ann", n, START_MS + entry.until, entry.item))
        else:
            user_fold.add(by_index[n])
    actual = user_fold.outcome
    own = {"version": 0, "epoch": 0, "forgotten_until_ms": 0}
    assert replace(actual.meta, **own) == replace(expected.meta, **own)
    assert [(start, rows.tobytes()) for start, rows in actual.sealed] == [
        (start, rows.tobytes()) for start, rows in expected.sealed
    ]
    assert without_hashes(actual.tail) == without_hashes(expected.tail)
    assert actual.meta.version >= expected.meta.version


def without_hashes(rows: Rows) -> bytes:
    rows = rows.copy()
    rows["event_hash"] = 0
    return rows.tobytes()
