"""One damaged user stops nobody: whoever meets the damage quarantines him, and a deletion is the way out."""

import logging
from collections.abc import Callable

import numpy as np
import pytest

from state import keys, quarantine
from state.arrivals import Arrivals, Deletion, Position
from state.bundle_rollout import mark_some, start_rollout
from state.errors import CorruptValue, DamagedUsers, StoreDamaged
from state.inspection import users_of
from state.interaction import Rows
from state.key_value_store import Batch, Cursor, Family, KeyValueStore, MemoryStore
from state.quarantine import read_damaged_users
from state.segments import HistoryConfig
from state.store_check import check_store
from state.user_store import UserStore
from tests.state.builders import START_MS, arrive, make_rows, summary_at

HISTORY = HistoryConfig(recent_len=9, mid_term_len=15, chunk_len=3, max_history=60)
KINDS = {"head": keys.HEAD, "tail": keys.TAIL, "chunk": keys.CHUNK, "forgotten": keys.FORGOTTEN}


def news(*times: int, first_item: int = 900) -> Rows:
    return make_rows([*times], first_item=first_item)


def flip_last(value: bytes) -> bytes:
    return value[:-1] + bytes([value[-1] ^ 1])


def flip_version(value: bytes) -> bytes:
    place = 4 if len(value) >= 96 else 0  # a head begins with its checksum
    return value[:place] + bytes([value[place] ^ 8]) + value[place + 1 :]


def cut(value: bytes) -> bytes:
    return value[:3]


def arrivals_of(
    rows_of: dict[str, Rows], first_offset: int, deletions: dict[int, tuple[str, int]] | None = None
) -> Arrivals:
    """Rows user after user, and in between whole deletions (item 0) or requests to forget, by offset."""
    users = [user.encode() for user, rows in rows_of.items() for _ in range(len(rows))]
    deletions = deletions or {}
    num = len(users) + len(deletions)
    offsets = [n for n in range(first_offset, first_offset + num) if n not in deletions]
    return Arrivals(
        0,
        Position(first_offset + num, 7),
        users,
        np.array(offsets, np.int64),
        np.concatenate(list(rows_of.values())) if rows_of else make_rows([]),
        [Deletion(user, n, START_MS + 500, item) for n, (user, item) in deletions.items()],
    )


def store_of_three(database: KeyValueStore) -> UserStore:
    """Users ann, bob and eve with chunks, tail blocks and forgotten items."""
    store = UserStore(database, HISTORY, 0)
    store.apply(
        arrivals_of(
            {user: make_rows([*range(20)]) for user in ("ann", "bob", "eve")},
            0,
            {n: (user, 999) for n, user in zip((60, 61, 62), ("ann", "bob", "eve"), strict=True)},
        )
    )
    store.apply(
        arrivals_of({u: news(*range(600, 609), first_item=100) for u in ("ann", "bob", "eve")}, 63)
    )
    return store


def damage(
    database: KeyValueStore, user: str, kind: bytes, change: Callable[[bytes], bytes] = flip_last
) -> None:
    prefix = keys.user_prefix(user.encode()) + kind
    key, value = next(database.scan(Family.USERS, prefix, keys.after(prefix)))
    batch = Batch()
    batch.put(Family.USERS, key, change(value))
    database.write(batch)


def reopened(store: UserStore) -> UserStore:
    return UserStore(store.database, HISTORY, 0)


@pytest.mark.parametrize("change", [flip_last, flip_version, cut])
@pytest.mark.parametrize("kind", KINDS)
def test_a_poll_with_a_damaged_user_writes_nothing_and_quarantines_him_alone(
    database: KeyValueStore,
    kind: str,
    change: Callable[[bytes], bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    store_of_three(database).flush()
    damage(database, "ann", KINDS[kind], change)
    store = UserStore(database, HISTORY, 0)
    before = store.position()
    poll = arrivals_of({"ann": news(1), "bob": news(700)}, 90)
    for _ in range(2):
        with pytest.raises(DamagedUsers, match=rf"partition 0, user 'ann': {kind}"):
            store.apply(poll)
    assert list(store.quarantine.users) == ["ann"]
    assert (store.position(), store.num_users()) == (before, 3)
    applied = store.apply(arrivals_of({"bob": news(700), "eve": news(1)}, 90))
    assert applied.interactions == 2
    again = reopened(store)
    assert list(again.quarantine.users) == ["ann"]
    told = [record for record in caplog.records if "is quarantined" in record.message]
    assert len(told) == 1, "once per user"
    (found,) = {each.user for each in check_store(database, HISTORY, 0).damage}
    assert found == "ann"


@pytest.mark.parametrize("kind", ["head", "tail", "chunk", "summary"])
def test_reads_of_a_damaged_user_say_so_and_of_others_go_on(
    database: KeyValueStore, kind: str
) -> None:
    store = store_of_three(database)
    for user in ("ann", "bob"):
        assert store.put_summary(user, summary_at(6), 0, 0) == (True, False)
    damage(database, "ann", {**KINDS, "summary": keys.SUMMARY}[kind])
    if kind == "chunk":  # the first ones are compressed, the seen items alone need them
        with pytest.raises(DamagedUsers):
            store.read_seen("ann")
    else:
        with pytest.raises(DamagedUsers):
            store.read_user("ann", "v1")
    assert list(store.quarantine.users) == ["ann"]
    reads: list[Callable[[], object]] = [
        lambda: store.read_user("ann", "v1"),
        lambda: store.read_seen("ann"),
        lambda: store.read_rolled("ann", "v1", 9),
        lambda: store.put_summary("ann", summary_at(9), 6, 0),
        lambda: store.mark_dirty("ann", "v2"),
        lambda: store.clear_if_complete("ann", "v1"),
    ]
    for read in reads:
        with pytest.raises(DamagedUsers):
            read()
    assert store.read_user("bob", "v1") is not None
    assert {mark.user_id for mark in store.dirty_marks()} == {"bob", "eve"}


def test_chunks_are_checked_before_they_are_handed_out(database: KeyValueStore) -> None:
    store = store_of_three(database)
    start = store.read_user("ann", "v1").meta.lifecycle_boundary  # type: ignore[union-attr]
    key = keys.chunk_key(keys.user_prefix(b"ann"), start)
    (chunk,) = database.get(Family.USERS, [key])
    batch = Batch()
    batch.put(Family.USERS, key, flip_last(chunk or b""))
    database.write(batch)
    with pytest.raises(DamagedUsers, match=f"chunk {start}: "):
        store.read_user("ann", "v1")


@pytest.mark.parametrize("known", [False, True], ids=["not met yet", "quarantined"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_deletion_reads_nothing_and_is_the_way_out(
    database: KeyValueStore, kind: str, *, known: bool
) -> None:
    """What came before it in the poll goes with everything, what follows begins anew."""
    store_of_three(database)
    damage(database, "ann", KINDS[kind])
    store = UserStore(database, HISTORY, 0)
    epoch = store.read_user("bob", "").meta.epoch  # type: ignore[union-attr]
    if known:
        with pytest.raises(DamagedUsers):
            store.apply(arrivals_of({"ann": news(1)}, 90))
    poll = arrivals_of({"ann": news(1, 700, 701), "bob": news(700)}, 90, {91: ("ann", 0)})
    applied = store.apply(poll)
    assert (applied.interactions, applied.deletions) == (3, 1)
    assert not store.quarantine.users
    stored = store.read_user("ann", "")
    assert stored is not None
    assert stored.decode("ann").rows["event_time_ms"].tolist() == [START_MS + 700, START_MS + 701]
    assert stored.meta.epoch > epoch, "work begun before is refused"
    assert store.num_users() == len(list(users_of(database))) == 3
    assert check_store(database, HISTORY, 0).damage == []
    assert store.erase_deleted() == 1
    assert not reopened(store).quarantine.users
    assert store.apply(arrivals_of({"ann": news(3)}, 95)).refused == 1


def test_damage_that_left_with_a_deletion_while_it_was_read_marks_nobody(
    database: KeyValueStore,
) -> None:
    store = store_of_three(database)
    damage(database, "ann", keys.CHUNK)
    poll = arrivals_of({"ann": news(700)}, 90, {90: ("ann", 0)})

    def read_while_it_is_deleted() -> None:
        with store.quarantine.finding("ann"):
            try:
                store._read_seen("ann", None)
            finally:
                store.apply(poll)

    with pytest.raises(CorruptValue) as told:
        read_while_it_is_deleted()
    assert not isinstance(told.value, DamagedUsers)
    assert not store.quarantine.users
    assert not list(read_damaged_users(database))
    assert store.read_user("ann", "") is not None


def test_deleted_and_nothing_since(database: KeyValueStore) -> None:
    store_of_three(database)
    damage(database, "ann", keys.HEAD, cut)
    store = UserStore(database, HISTORY, 0)
    store.apply(arrivals_of({}, 90, {90: ("ann", 0)}))
    assert store.read_user("ann", "") is None
    assert store.num_users() == 2
    assert check_store(database, HISTORY, 0).damage == []


def test_a_request_to_forget_an_item_is_no_way_out(database: KeyValueStore) -> None:
    store_of_three(database)
    damage(database, "ann", keys.CHUNK)
    store = UserStore(database, HISTORY, 0)
    with pytest.raises(DamagedUsers):
        store.apply(arrivals_of({}, 90, {90: ("ann", 5)}))


def test_whoever_is_whole_again_is_released_at_the_opening(
    database: KeyValueStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    store = store_of_three(database)
    damage(database, "ann", keys.CHUNK)
    damage(database, "bob", keys.CHUNK)
    for user in ("ann", "bob"):
        with pytest.raises(DamagedUsers):
            store.apply(arrivals_of({user: news(1)}, 90))
    damage(database, "ann", keys.CHUNK)  # the same bit back
    assert list(reopened(store).quarantine.users) == ["bob"]
    assert [user for user, _ in read_damaged_users(database)] == ["bob"]
    (told,) = (each.getMessage() for each in caplog.records if "whole again" in each.message)
    assert "user 'ann'" in told
    assert "`gemstream dlq replay`" in told


def test_more_damaged_users_than_accidents_explain_are_damage_of_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database = MemoryStore()
    store_of_three(database)
    for user in ("ann", "bob"):
        damage(database, user, keys.HEAD)
    monkeypatch.setattr(quarantine, "MAX_USERS", 1)
    store = UserStore(database, HISTORY, 0)
    poll = arrivals_of({user: news(700) for user in ("ann", "bob")}, 90)
    with pytest.raises(CorruptValue, match=r"partition 0, 2 users are damaged.*restore") as told:
        store.apply(poll)
    assert not isinstance(told.value, DamagedUsers), "it ends the node"
    assert not store.quarantine.users


def test_damaged_files_are_nobodys_quarantine() -> None:
    class Broken(MemoryStore):
        is_broken = False

        def scan(self, family: Family, start: bytes, end: bytes) -> Cursor:
            if self.is_broken:
                raise StoreDamaged("RocksDB reports Corruption")
            return super().scan(family, start, end)

    database = Broken()
    store = UserStore(database, HISTORY, 0)
    store.apply(arrive(make_rows([*range(20)])))
    database.is_broken = True
    with pytest.raises(StoreDamaged):
        store.read_user("ann", "")
    with pytest.raises(StoreDamaged):
        store.apply(arrive(news(1), first_offset=20))
    assert not store.quarantine.users


@pytest.mark.parametrize("kind", ["head", "summary"])
def test_a_rollout_walks_past_damaged_users(database: KeyValueStore, kind: str) -> None:
    store = store_of_three(database)
    store.put_summary("ann", summary_at(6, "next"), 0, 0)
    damage(database, "ann", {"head": keys.HEAD, "summary": keys.SUMMARY}[kind])
    store.change_bundles(lambda live: start_rollout(live, "next", 10.0, 1))
    store.change_bundles(lambda live: mark_some(live, 10, 10).batch)
    owed = {mark.user_id for mark in store.dirty_marks() if mark.bundle_version}
    assert {"bob", "eve"} <= owed
