"""The store of user states on both databases: apply, read, compare-and-set, reopen."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from state import keys
from state.append import MAX_TAIL_BLOCKS
from state.arrivals import Arrivals, Position
from state.errors import ConfigError, CorruptValue, StoreError
from state.inspection import inspect_user, users_of
from state.key_value_store import Batch, Family, KeyValueStore, MemoryStore
from state.rocks_config import RocksConfig
from state.rocks_store import RocksMemory, RocksStore
from state.segments import HistoryConfig
from state.user_store import UserStore
from tests.state.builders import SMALL, START_MS, arrive, make_rows, summary_at
from tests.state.test_fold import History


def test_apply_then_read(database: KeyValueStore) -> None:
    store = UserStore(database, SMALL, 0)
    store.apply(arrive(make_rows(list(range(20)))))
    stored = store.read_user("ann", "v1")
    assert stored is not None
    state = stored.decode("ann")
    assert state.meta.lifecycle_boundary == 6
    assert state.rows["item_id"].tolist() == list(range(7, 21))
    assert state.recent(SMALL)["item_id"].tolist() == [17, 18, 19, 20]
    assert state.mid_term(SMALL)["item_id"].tolist() == list(range(7, 17))
    assert store.read_user("bob", "v1") is None
    assert store.position() == Position(20, 7)


def test_offsets_applied_before_are_skipped(database: KeyValueStore) -> None:
    store = UserStore(database, SMALL, 0)
    store.apply(arrive(make_rows(list(range(10)))))
    applied = store.apply(arrive(make_rows(list(range(15))), first_offset=0))
    assert (applied.replayed, applied.interactions) == (10, 5)
    assert store.position() == Position(15, 7)


def test_an_older_poll_never_moves_the_offset_back(database: KeyValueStore) -> None:
    store = UserStore(database, SMALL, 0)
    store.apply(arrive(make_rows(list(range(10)))))
    store.apply(arrive(make_rows([1, 2]), first_offset=0))
    assert store.position() == Position(10, 7)


def test_users_of_one_poll_do_not_mix(database: KeyValueStore) -> None:
    store = UserStore(database, SMALL, 0)
    rows = make_rows(list(range(6)))
    users = [b"ann", b"bob", b"ann", b"bob", b"ann", b"ann"]
    store.apply(Arrivals(0, Position(6, 7), users, np.arange(6), rows))
    ann, bob = store.read_user("ann", "v"), store.read_user("bob", "v")
    assert ann is not None
    assert bob is not None
    assert ann.decode("ann").rows["item_id"].tolist() == [1, 3, 5, 6]
    assert bob.decode("bob").rows["item_id"].tolist() == [2, 4]


def test_rolled_gives_just_what_the_boundary_left_behind(database: KeyValueStore) -> None:
    store = UserStore(database, SMALL, 0)
    store.apply(arrive(make_rows(list(range(18)))))
    rolled = store.read_rolled("ann", "v1", 64)
    assert rolled is not None
    assert (rolled.base_boundary, rolled.end_boundary, len(rolled.chunks)) == (0, 6, 2)
    assert store.put_summary("ann", summary_at(6), 0, 0) == (True, True)
    store.apply(arrive(make_rows([30, 31, 32], first_item=50), first_offset=18))
    rolled = store.read_rolled("ann", "v1", 64)
    assert rolled is not None
    assert (rolled.base_boundary, rolled.end_boundary, len(rolled.chunks)) == (6, 9, 1)


def test_rolled_comes_in_bounded_steps(database: KeyValueStore) -> None:
    store = UserStore(database, SMALL, 0)
    store.apply(arrive(make_rows(list(range(24)))))
    rolled = store.read_rolled("ann", "v1", 2)
    assert rolled is not None
    assert (rolled.end_boundary, rolled.lifecycle_boundary) == (6, 12)
    assert store.put_summary("ann", summary_at(6), 0, 0) == (True, False)
    assert len(store.dirty_marks()) == 1
    assert store.put_summary("ann", summary_at(12), 6, 0) == (True, True)
    assert store.dirty_marks() == []


@pytest.mark.parametrize(
    ("offered", "base", "epoch"),
    [(9, 3, 0), (6, 6, 0), (15, 6, 0), (9, 6, 1), (9, 0, 0)],
    ids=["wrong base", "no progress", "past the boundary", "wrong epoch", "from nothing"],
)
def test_stale_summaries_are_refused(
    database: KeyValueStore, offered: int, base: int, epoch: int
) -> None:
    store = UserStore(database, SMALL, 0)
    store.apply(arrive(make_rows(list(range(24)))))
    store.put_summary("ann", summary_at(6), 0, 0)
    assert store.put_summary("ann", summary_at(offered), base, epoch) == (False, False)
    stored = store.read_user("ann", "v1")
    assert stored is not None
    assert stored.summary is not None
    assert stored.summary.boundary == 6
    assert len(store.dirty_marks()) == 1


def test_a_summary_belongs_to_its_bundle(database: KeyValueStore) -> None:
    store = UserStore(database, SMALL, 0)
    store.apply(arrive(make_rows(list(range(18)))))
    store.put_summary("ann", summary_at(6), 0, 0)
    stored = store.read_user("ann", "v2")
    assert stored is not None
    assert stored.summary is None


def test_evicted_chunks_leave_the_disk(database: KeyValueStore) -> None:
    store = UserStore(database, SMALL, 0)
    for start in range(0, 40, 5):
        rows = make_rows(list(range(start, start + 5)), first_item=start + 1)
        store.apply(arrive(rows, first_offset=start))
    rolled = store.read_rolled("ann", "v1", 64)
    assert rolled is not None
    assert rolled.end_boundary == 27
    assert len(rolled.chunks) == (27 - 12) // 3


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.integers(1, 40)), max_size=120
    ),
    st.lists(st.integers(1, 40), max_size=20),
)
def test_appending_many_users_at_once_is_as_folding_each(
    log: list[tuple[str, int, int]], sizes: list[int]
) -> None:
    """The store's short way against its slow twin, the fold; times mostly grow, with ties and steps back."""
    rows = make_rows([n // 2 + time // 20 for n, (_, time, _) in enumerate(log)])
    relative_ms = (rows["event_time_ms"] - START_MS).astype(np.uint64)
    rows["event_hash"] = [event_hash * 1_000 for _, _, event_hash in log]
    rows["event_hash"] += relative_ms  # one event, one time
    rows["item_id"] = [event_hash for _, _, event_hash in log]
    rows["author_id"] = 0
    users = [user.encode() for user, _, _ in log]
    database = MemoryStore()
    store, start = UserStore(database, SMALL, 0), 0
    for size in [*sizes, len(log)]:
        end = min(len(log), start + size)
        store.apply(
            Arrivals(
                0, Position(end, end), users[start:end], np.arange(start, end), rows[start:end]
            )
        )
        start = end
    assert store.num_users() == len(list(users_of(database))) == len(set(users))
    for user in set(users):
        history = History(SMALL)
        for index in [n for n, other in enumerate(users) if other == user]:
            history.add(rows[index : index + 1])
        inspection = inspect_user(database, user.decode())
        assert inspection is not None
        assert replace(inspection.meta, tail_blocks=0) == replace(history.meta, tail_blocks=0)
        assert np.array_equal(inspection.tail, history.tail)
        assert inspection.num_chunks == len(history.chunks)


def test_a_tail_never_lies_in_too_many_blocks(database: KeyValueStore) -> None:
    history = HistoryConfig(recent_len=90, mid_term_len=200, chunk_len=90, max_history=400)
    store = UserStore(database, history, 0)
    for number in range(170):
        store.apply(arrive(make_rows([number], first_item=number + 1), first_offset=number))
        stored = store.read_user("ann", "")
        assert stored is not None
        assert len(stored.tail) - 1 <= stored.meta.tail_blocks <= MAX_TAIL_BLOCKS + 1
        assert stored.decode("ann").rows["item_id"][-1] == number + 1
        assert len(stored.decode("ann").rows) == number + 1


def test_another_history_configuration_is_refused(database: KeyValueStore) -> None:
    UserStore(database, SMALL, 0)
    with pytest.raises(ConfigError, match="recent_len"):
        UserStore(
            database, HistoryConfig(recent_len=5, mid_term_len=12, chunk_len=3, max_history=30), 0
        )
    with pytest.raises(CorruptValue, match="made for partition 0, not 1"):
        UserStore(database, SMALL, 1)


def test_users_without_a_position_are_refused(database: KeyValueStore) -> None:
    UserStore(database, SMALL, 0).apply(arrive(make_rows([1])))
    batch = Batch()
    batch.delete(Family.SYSTEM, keys.POSITION_KEY)
    database.write(batch)
    with pytest.raises(CorruptValue, match="no position"):
        UserStore(database, SMALL, 0)


def open_rocks(path: Path) -> RocksStore:
    return RocksStore(path, RocksMemory(RocksConfig()))


def test_reopen_finds_everything_and_keeps_the_options(tmp_path: Path) -> None:
    database = open_rocks(tmp_path)
    UserStore(database, SMALL, 0).apply(arrive(make_rows(list(range(20)))))
    database.close()
    again = open_rocks(tmp_path)
    assert UserStore(again, SMALL, 0).position() == Position(20, 7)
    newest_options = max(tmp_path.glob("OPTIONS-*"), key=lambda path: path.stat().st_mtime_ns)
    assert newest_options.read_text().count("filter_policy=bloomfilter") == 3
    again.close()


def uses() -> list[Callable[[RocksStore], object]]:
    return [
        lambda store: store.get(Family.USERS, [b"a"]),
        lambda store: store.scan(Family.USERS, b"a", b"b"),
        lambda store: store.write(Batch()),
        lambda store: store.flush(),
    ]


@pytest.mark.parametrize("use", uses(), ids=["get", "scan", "write", "flush"])
def test_a_closed_store_says_so(tmp_path: Path, use: Callable[[RocksStore], object]) -> None:
    database = open_rocks(tmp_path)
    database.close()
    database.close()
    with pytest.raises(StoreError):
        use(database)


def test_a_log_sent_again_changes_nothing_however_long_ago(database: KeyValueStore) -> None:
    store = UserStore(database, SMALL, 0)
    rows = make_rows(list(range(24)))
    store.apply(arrive(rows))
    before = store.read_user("ann", "v1")
    applied = store.apply(arrive(rows, first_offset=24))
    assert (applied.interactions, applied.duplicates) == (0, 24)
    after = store.read_user("ann", "v1")
    assert before is not None
    assert after is not None
    assert (after.meta, after.chunks, after.tail) == (before.meta, before.chunks, before.tail)


def test_a_mark_without_work_is_taken_back(database: KeyValueStore) -> None:
    store = UserStore(database, SMALL, 0)
    store.apply(arrive(make_rows(list(range(18)))))
    store.clear_if_complete("ann", "v1")
    assert len(store.dirty_marks()) == 1, "work is left"
    store.put_summary("ann", summary_at(6), 0, 0)
    assert store.mark_dirty("ann")
    assert not store.mark_dirty("ann"), "owed already"
    store.clear_if_complete("ann", "v2")
    assert len(store.dirty_marks()) == 1, "another bundle's work is left"
    store.clear_if_complete("ann", "v1")
    assert store.dirty_marks() == []
