"""Deletions of users: what is left, what is refused, what leaves the disk, and in which place of the log."""

from pathlib import Path

import numpy as np
from hypothesis import given, strategies as st

from state import keys
from state.arrivals import Arrivals, Deletion, Position
from state.inspection import users_of
from state.interaction import empty_rows
from state.key_value_store import Family, KeyValueStore, MemoryStore
from state.poll_batch import read_num_users
from state.user_store import UserStore
from tests.state.builders import SMALL, START_MS, arrive, make_rows, stored_histories, summary_at
from tests.state.checkpointing import open_rocks


def delete(offset: int, until: int, user: str = "ann") -> Arrivals:
    deletion = Deletion(user, offset, START_MS + until)
    return Arrivals(0, Position(offset + 1, 7), [], np.arange(0), empty_rows(), [deletion])


def user_keys(database: KeyValueStore) -> list[bytes]:
    return [key for key, _ in database.scan(Family.USERS, b"", b"\xff")]


def test_deletion_removes_everything_but_the_refusal(database: KeyValueStore) -> None:
    store = UserStore(database, SMALL, 0)
    store.apply(arrive(make_rows(list(range(24)))))
    store.put_summary("ann", summary_at(6), 0, 0)
    applied = store.apply(delete(24, until=100))
    assert applied.deletions == 1
    assert user_keys(database) == [keys.user_prefix(b"ann") + keys.HEAD]
    assert store.dirty_marks() == []
    assert store.read_user("ann", "v1") is None
    assert list(users_of(database)) == []


def test_after_a_deletion_the_past_is_refused_and_the_future_starts_afresh(
    database: KeyValueStore,
) -> None:
    store = UserStore(database, SMALL, 0)
    store.apply(arrive(make_rows(list(range(24)))))
    store.apply(delete(24, until=100))
    applied = store.apply(arrive(make_rows([99, 100, 101, 102]), first_offset=25))
    assert (applied.refused, applied.interactions) == (2, 2)
    stored = store.read_user("ann", "v1")
    assert stored is not None
    assert stored.decode("ann").rows["item_id"].tolist() == [3, 4]
    assert (stored.meta.epoch, stored.meta.version, stored.meta.first_position) == (1, 2, 0)


def test_work_begun_before_a_deletion_is_refused(database: KeyValueStore) -> None:
    store = UserStore(database, SMALL, 0)
    store.apply(arrive(make_rows(list(range(24)))))
    rolled = store.read_rolled("ann", "v1", 64)
    assert rolled is not None
    store.apply(delete(24, until=100))
    store.apply(arrive(make_rows(list(range(200, 224))), first_offset=25))
    assert store.put_summary("ann", summary_at(6), 0, rolled.epoch) == (False, False)


log_entries = st.lists(
    st.one_of(st.integers(0, 40), st.tuples(st.just("delete"), st.integers(0, 40))), max_size=40
)


@given(log_entries, st.lists(st.integers(1, 9), max_size=20))
def test_deletions_give_the_same_state_however_the_log_is_split(
    log: list[int | tuple[str, int]], sizes: list[int]
) -> None:
    split, one_by_one = MemoryStore(), MemoryStore()
    start = 0
    for size in [*sizes, len(log)]:
        UserStore(split, SMALL, 0).apply(arrivals_of(log, start, min(len(log), start + size)))
        start = min(len(log), start + size)
    for index in range(len(log)):
        UserStore(one_by_one, SMALL, 0).apply(arrivals_of(log, index, index + 1))
    assert stored_histories(split) == stored_histories(one_by_one)
    assert read_num_users(split) == len(list(users_of(split)))
    system = [list(store.scan(Family.SYSTEM, b"", b"\xff")) for store in (split, one_by_one)]
    assert not log or system[0] == system[1]


def arrivals_of(log: list[int | tuple[str, int]], start: int, end: int) -> Arrivals:
    """Numbers are interactions at that time, the rest deletes what happened until then."""
    times = {n: log[n] for n in range(start, end) if isinstance(log[n], int)}
    deletions = [
        Deletion("ann", n, START_MS + entry[1])
        for n in range(start, end)
        if not isinstance(entry := log[n], int)
    ]
    rows = make_rows(list(times.values()), [n + 1 for n in times])  # type: ignore[arg-type]
    rows["item_id"] = rows["event_hash"]
    rows["author_id"] = 0
    return Arrivals(
        0, Position(end, end), [b"ann"] * len(rows), np.array([*times], np.int64), rows, deletions
    )


def test_erased_users_leave_the_disk(tmp_path: Path) -> None:
    database = open_rocks(tmp_path)
    store = UserStore(database, SMALL, 0)
    rows = make_rows(list(range(24)))
    rows["author_id"] = np.random.default_rng(5).integers(0, 2**63, len(rows))
    store.apply(arrive(rows))
    store.apply(arrive(make_rows(list(range(24))), user="bob", first_offset=24))
    kept = store.read_user("bob", "v1")
    secret = database.get(Family.USERS, [keys.chunk_key(keys.user_prefix(b"ann"), 0)])[0]
    assert secret is not None
    assert found_on_disk(tmp_path, secret)
    store.apply(delete(48, until=100))
    assert store.erase_deleted() == 1
    assert store.erase_deleted() == 0
    assert not found_on_disk(tmp_path, secret)
    assert store.read_user("bob", "v1") == kept
    database.close()


def test_a_deletion_during_an_erasure_is_erased_in_the_next_round() -> None:
    class DeletesAgainMeanwhile(MemoryStore):
        def erase(self, family: Family, ranges: object) -> None:
            if store.position() == Position(1, 7):
                store.apply(delete(1, until=200))

    store = UserStore(DeletesAgainMeanwhile(), SMALL, 0)
    store.apply(delete(0, until=100))
    assert [store.erase_deleted() for _ in range(3)] == [1, 1, 0]


def found_on_disk(directory: Path, secret: bytes) -> bool:
    return any(secret[-40:] in path.read_bytes() for path in directory.iterdir() if path.is_file())
