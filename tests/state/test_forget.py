"""An item forgotten: the history is as if it had never been, wherever the log is cut, and the bytes leave the disk."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from state import keys
from state.arrivals import Applied, Arrivals, Deletion, Position
from state.chunk_codec import decode_rows
from state.interaction import Rows, join_rows
from state.key_value_store import Family, KeyValueStore, MemoryStore
from state.rocks_config import RocksConfig
from state.rocks_store import RocksMemory, RocksStore
from state.summary import Summary
from state.user_state import UserMeta
from state.user_store import UserStore
from tests.state.builders import SMALL, START_MS, make_rows


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
