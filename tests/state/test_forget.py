"""An item forgotten: the history is as if it had never been, wherever the log is cut, and the bytes leave the disk."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from state import keys
from state.arrivals import Applied, Arrivals, Deletion, Position
from state.chunk_codec import decode_rows
from state.fold import fold
from state.forgotten_items import MAX_FORGOTTEN, ForgottenItems
from state.interaction import INTERACTION, Rows, empty_rows, join_rows
from state.key_value_store import Family, KeyValueStore, MemoryStore
from state.rocks_config import RocksConfig
from state.rocks_store import RocksMemory, RocksStore
from state.segments import HistoryConfig
from state.summary import Summary
from state.user_fold import UserFold
from state.user_state import UserMeta
from state.user_store import UserStore
from tests.state.builders import SMALL, START_MS, make_rows, stored_histories

LONG = replace(SMALL, max_history=300)
"""Nothing leaves such a history in these tests."""
WIDE = HistoryConfig(recent_len=20, mid_term_len=30, chunk_len=5, max_history=50)
"""Its tail lies in blocks."""


@dataclass(frozen=True)
class Happened:
    """An interaction at a time."""

    item: int
    time: int
    user: str = "ann"


@dataclass(frozen=True)
class Asked:
    """A request to forget one item, or everything, up to a time."""

    item: int
    until: int
    user: str = "ann"


Entry = Happened | Asked


def row_of(entry: Happened, event_hash: int) -> Rows:
    """One interaction; the same item at the same time is the same in every feature."""
    row = make_rows([entry.time], [event_hash])
    row["item_id"], row["author_id"] = entry.item, 0
    return row


def one_id_one_content(entry: Happened) -> int:
    return entry.item * 1_000 + entry.time + 1


def arrivals_of(log: Sequence[Entry], start: int, end: int, offset: int = 0) -> Arrivals:
    """Entries [start, end) of a log whose first has the offset given."""
    happened = [(n, e) for n, e in enumerate(log[start:end], start) if isinstance(e, Happened)]
    asked = [(n, e) for n, e in enumerate(log[start:end], start) if isinstance(e, Asked)]
    return Arrivals(
        0,
        Position(offset + end, offset + end),
        [entry.user.encode() for _, entry in happened],
        np.array([offset + n for n, _ in happened], np.int64),
        join_rows([row_of(entry, one_id_one_content(entry)) for _, entry in happened]),
        [Deletion(e.user, offset + n, START_MS + e.until, e.item) for n, e in asked],
    )


def apply(store: UserStore, *log: Entry) -> Applied:
    """One poll, behind what was applied before."""
    position = store.position()
    offset = position.next_offset if position else 0
    return store.apply(arrivals_of(log, 0, len(log), offset))


def items(store: UserStore, user: str = "ann") -> list[int]:
    """Of the whole history, oldest first."""
    prefix = keys.user_prefix(user.encode())
    chunks = store.database.scan(Family.USERS, prefix + keys.CHUNK, keys.after(prefix + keys.CHUNK))
    stored = store.read_user(user, "v1")
    sealed = [decode_rows(value)["item_id"] for _, value in chunks]
    if stored is None:
        assert sealed == []
        return []
    tail = [decode_rows(block)["item_id"] for block in stored.tail]
    return [int(item) for item in np.concatenate([*sealed, *tail])]


def meta_of(store: UserStore, user: str = "ann") -> UserMeta:
    stored = store.read_user(user, "v1")
    assert stored is not None
    return stored.meta


@pytest.fixture(params=["memory", "rocks"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[UserStore]:
    database: KeyValueStore = (
        MemoryStore() if request.param == "memory" else open_rocks(tmp_path / "db")
    )
    store = UserStore(database, SMALL, 0)
    yield store
    store.close()


def open_rocks(path: Path) -> RocksStore:
    return RocksStore(path, RocksMemory(RocksConfig()))


def watched(*item_ids: int, start: int = 0) -> list[Happened]:
    return [Happened(item, start + n) for n, item in enumerate(item_ids)]


def summary_at(boundary: int) -> Summary:
    tokens = np.zeros((2, 3), np.float32)
    return Summary(
        bundle_version="v1",
        boundary=boundary,
        count=boundary,
        accumulators=b"z",
        tokens=tokens,
        built_at_ms=1,
    )


# What a user sees


def test_a_forgotten_item_leaves_chunks_tail_and_summary(store: UserStore) -> None:
    apply(store, *watched(*range(1, 23), 5, 22))
    assert meta_of(store).lifecycle_boundary == 12
    assert store.put_summary("ann", summary_at(12), 0, 0) == (True, True)
    applied = apply(store, Asked(5, 100), Asked(22, 100))
    assert (applied.deletions, applied.forgotten) == (2, 4)
    assert items(store) == [n for n in range(1, 22) if n != 5]
    meta = meta_of(store)
    assert (meta.length, meta.lifecycle_boundary, meta.tail_start) == (20, 6, 15)
    assert (meta.version, meta.epoch) == (26, 2)
    stored = store.read_user("ann", "v1")
    assert stored is not None
    assert stored.summary is None
    assert [mark.lifecycle_boundary for mark in store.dirty_marks()] == [6]


def test_a_history_of_nothing_else_is_gone(store: UserStore) -> None:
    apply(store, *watched(*[7] * 24))
    apply(store, Asked(7, 100))
    assert store.read_user("ann", "v1") is None
    assert store.dirty_marks() == []
    apply(store, Happened(7, 101), Happened(8, 5))
    assert items(store) == [8, 7]


def test_what_was_never_there_changes_nothing_but_the_refusal(store: UserStore) -> None:
    apply(store, *watched(*range(1, 20)))
    store.put_summary("ann", summary_at(6), 0, 0)
    before = store.read_user("ann", "v1")
    applied = apply(store, Asked(99, 100))
    after = store.read_user("ann", "v1")
    assert before is not None
    assert after is not None
    assert after.meta == replace(before.meta, forgotten_until_ms=START_MS + 100, tail_blocks=0)
    assert after.chunks == before.chunks
    assert after.summary is not None
    assert (applied.forgotten, store.erase_deleted()) == (0, 0)
    assert apply(store, Happened(99, 100)).refused == 1


def test_only_what_happened_until_then_is_forgotten(store: UserStore) -> None:
    apply(store, *watched(1, 2, 1, 3, 1))
    apply(store, Asked(1, 2))
    assert items(store) == [2, 3, 1]


def test_the_forgotten_past_is_refused_and_the_future_is_not(store: UserStore) -> None:
    apply(store, *watched(1, 2, 3), Asked(2, 50))
    applied = apply(store, Happened(2, 1), Happened(2, 50), Happened(2, 51), Happened(4, 49))
    assert (applied.refused, applied.interactions) == (2, 2)
    assert items(store) == [1, 3, 4, 2]


def test_a_stranger_who_asks_is_remembered_for_the_refusal_alone(store: UserStore) -> None:
    apply(store, Asked(2, 50))
    assert store.read_user("ann", "v1") is None
    assert apply(store, Happened(2, 50), Happened(3, 50)).refused == 1
    assert items(store) == [3]


def test_other_users_of_the_poll_keep_theirs(store: UserStore) -> None:
    log: list[Entry] = [Happened(5, n, user) for n in range(3) for user in ("ann", "bob")]
    apply(store, *log, Asked(5, 100), Happened(6, 101, "bob"), Happened(7, 101))
    assert items(store, "bob") == [5, 5, 5, 6]
    assert items(store) == [7]


def test_work_begun_before_is_refused(store: UserStore) -> None:
    apply(store, *watched(*range(1, 25)))
    rolled = store.read_rolled("ann", "v1", 64)
    assert rolled is not None
    apply(store, Asked(5, 100))
    assert store.put_summary("ann", summary_at(6), 0, rolled.epoch) == (False, False)
    again = store.read_rolled("ann", "v1", 64)
    assert again is not None
    assert (again.base_boundary, again.end_boundary, again.epoch) == (0, 9, 1)


def test_summaries_forget_what_left_the_history_too(store: UserStore) -> None:
    """Whether a chunk that is gone held the item is unknown: the summary starts again from what is left."""
    apply(store, *watched(*range(1, 50)))
    meta = meta_of(store)
    assert meta.first_position == 21
    store.put_summary("ann", summary_at(meta.lifecycle_boundary), 0, 0)
    applied = apply(store, Asked(5, 100))
    assert applied.forgotten == 0
    stored = store.read_user("ann", "v1")
    assert stored is not None
    assert stored.summary is None
    assert (stored.meta.first_position, stored.meta.length, stored.meta.epoch) == (0, 28, 1)
    assert items(store) == list(range(22, 50))


def test_deleting_the_user_takes_the_list_along(store: UserStore) -> None:
    apply(store, *watched(1, 2, 3), Asked(2, 50), Asked(0, 60))
    user_keys = [key for key, _ in store.database.scan(Family.USERS, b"", b"\xff")]
    assert user_keys == [keys.user_prefix(b"ann") + keys.HEAD]
    apply(store, Asked(2, 60))  # of a past that is deleted as a whole
    assert [key for key, _ in store.database.scan(Family.USERS, b"", b"\xff")] == user_keys
    applied = apply(store, Happened(2, 55), Happened(2, 61))
    assert (applied.refused, applied.interactions) == (1, 1)


def test_what_comes_back_from_chunks_is_still_known(store: UserStore) -> None:
    """Interactions without an event hash in the tail, several of them, and each a duplicate of its own repetition."""
    log = watched(*range(1, 9))
    apply(store, *log)
    assert meta_of(store).tail_start == 3
    apply(store, Asked(4, 100), Asked(5, 100))
    assert (items(store), meta_of(store).tail_start) == ([1, 2, 3, 6, 7, 8], 0)
    applied = apply(store, *log)
    assert (applied.duplicates, applied.refused, applied.interactions) == (6, 2, 0)
    assert items(store) == [1, 2, 3, 6, 7, 8]
    apply(store, *watched(11, 12, 13, 14, start=20))
    assert items(store) == [1, 2, 3, 6, 7, 8, 11, 12, 13, 14]


def test_a_late_interaction_finds_its_place_when_the_history_is_cut_anew(store: UserStore) -> None:
    apply(store, *watched(*range(1, 11), start=10), Happened(50, 1))
    apply(store, Asked(2, 100))
    assert items(store) == [50, 1, *range(3, 11)]


def test_what_was_forgotten_leaves_the_disk(tmp_path: Path) -> None:
    database = open_rocks(tmp_path)
    store = UserStore(database, SMALL, 0)
    apply(store, *watched(*range(1, 25)), *(replace(e, user="bob") for e in watched(5, 6, 7)))
    prefix = keys.user_prefix(b"ann")
    secrets = [
        value
        for key, value in database.scan(Family.USERS, prefix, keys.after(prefix))
        if key[len(prefix) : len(prefix) + 1] in (keys.TAIL, keys.CHUNK)
        and 5 in decode_rows(value)["item_id"]
    ]
    (chunk,) = secrets
    assert found_on_disk(tmp_path, chunk)
    apply(store, Asked(5, 100))
    assert (store.erase_deleted(), store.erase_deleted()) == (1, 0)
    assert not found_on_disk(tmp_path, chunk)
    assert items(store) == [n for n in range(1, 25) if n != 5]
    assert items(store, "bob") == [5, 6, 7]
    database.close()


def found_on_disk(directory: Path, secret: bytes) -> bool:
    return any(secret[-40:] in path.read_bytes() for path in directory.iterdir() if path.is_file())


# Whatever the log


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


# The list


requests = st.lists(st.tuples(st.integers(1, 2**64 - 1) | st.integers(1, 5), st.integers(1, 40)))


def listed(asked: Sequence[tuple[int, int]]) -> ForgottenItems:
    forgotten = ForgottenItems()
    for item, until in asked:
        forgotten = forgotten.having(item, START_MS + until)
    return forgotten


@given(requests, st.lists(st.tuples(st.integers(0, 6), st.integers(0, 42)), max_size=30))
def test_the_list_refuses_what_a_loop_would(
    asked: list[tuple[int, int]], happened: list[tuple[int, int]]
) -> None:
    rows = make_rows([time for _, time in happened])
    rows["item_id"] = [item for item, _ in happened]
    expected = [
        any(item == other and time <= until for other, until in asked) for item, time in happened
    ]
    assert listed(asked).refuse(rows).tolist() == expected


@given(requests, st.randoms())
def test_neither_order_nor_repetition_of_requests_matters(
    asked: list[tuple[int, int]], random: object
) -> None:
    again = [*asked, *asked]
    random.shuffle(again)  # type: ignore[attr-defined]
    assert listed(again).entries.tobytes() == listed(asked).entries.tobytes()


def test_the_list_keeps_the_newest_requests() -> None:
    forgotten = listed([(n, n) for n in range(1, MAX_FORGOTTEN + 11)])
    assert len(forgotten.entries) == MAX_FORGOTTEN
    rows = np.zeros(2, INTERACTION)
    rows["item_id"] = [10, 11]
    assert forgotten.refuse(rows).tolist() == [False, True]
    assert forgotten.until_ms == START_MS + MAX_FORGOTTEN + 10
    assert forgotten.having(11, START_MS) is forgotten
