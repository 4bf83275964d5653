"""Damaged files of a real RocksDB: what a crash leaves opens, all else is one clear error, nothing is repaired."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from state import keys
from state.arrivals import Arrivals, Position
from state.errors import (
    CorruptValue,
    StoreError,
)
from state.interaction import Rows
from state.key_value_store import Batch, Family, MemoryStore
from state.rocks_config import RocksConfig
from state.rocks_store import RocksMemory, RocksStore
from state.user_store import UserStore
from tests.state.builders import SMALL, make_rows, stored_histories

POLL = 10
NUM_POLLS = 60
USERS = [b"ann", b"bob", b"cyd"]
EVERYTHING = (Family.USERS, b"", b"\xff")


def open_users(path: Path, **settings: bool) -> UserStore:
    return UserStore(RocksStore(path, RocksMemory(RocksConfig(**settings))), SMALL, 0)


def apply_from(store: UserStore, first: int, end: int = NUM_POLLS * POLL) -> None:
    """Apply the log from an offset on, as Kafka would send it."""
    rows: Rows = make_rows(list(range(NUM_POLLS * POLL)))
    for start in range(first, end, POLL):
        offsets = np.arange(start, min(start + POLL, end))
        users = [USERS[offset % 3] for offset in offsets]
        store.apply(Arrivals(0, Position(int(offsets[-1]) + 1, 7), users, offsets, rows[offsets]))
        store.flush()


@pytest.fixture(scope="session")
def uninterrupted() -> dict[bytes, object]:
    store = UserStore(MemoryStore(), SMALL, 0)
    apply_from(store, 0)
    return stored_histories(store.database)


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """What a crash leaves behind: everything in one log, synced and not closed."""
    store = open_users(tmp_path / "running")
    apply_from(store, 0)
    shutil.copytree(tmp_path / "running", tmp_path / "00003")
    store.close()
    return tmp_path / "00003"


@pytest.fixture
def flushed(tmp_path: Path) -> Path:
    """A closed store whose users are in one sorted file."""
    store = open_users(tmp_path / "00003")
    apply_from(store, 0)
    store.database.erase(Family.USERS, [])
    store.close()
    return tmp_path / "00003"


def change(file: Path, how: Callable[[bytearray], object]) -> None:
    data = bytearray(file.read_bytes())
    how(data)
    file.write_bytes(data)


def flip(position: float) -> Callable[[bytearray], None]:
    """One bit, at a share of the length."""

    def flipped(data: bytearray) -> None:
        data[int(len(data) * position)] ^= 4

    return flipped


def largest(path: Path, pattern: str) -> Path:
    return max(path.glob(pattern), key=lambda file: file.stat().st_size)


def read_all(store: RocksStore) -> None:
    for _ in store.scan(*EVERYTHING):
        pass


def test_what_was_flushed_survives_a_loss_of_power(
    crashed: Path, uninterrupted: dict[bytes, object]
) -> None:
    store = open_users(crashed)
    assert store.position() == Position(NUM_POLLS * POLL, 7)
    assert stored_histories(store.database) == uninterrupted
    store.close()


@pytest.mark.parametrize(
    ("how", "lost"),
    [
        (lambda data: data.__delitem__(slice(-20, None)), True),
        (lambda data: data.extend(bytes(10_000)), False),
        (lambda data: data.__delitem__(slice(len(data) // 2, None)), True),
    ],
    ids=["torn", "zeros behind", "half of it"],
)
def test_a_torn_log_opens_and_is_filled_again_from_its_position(
    crashed: Path,
    uninterrupted: dict[bytes, object],
    how: Callable[[bytearray], object],
    lost: bool,
) -> None:
    change(largest(crashed, "*.log"), how)
    store = open_users(crashed)
    position = store.position()
    assert position is not None
    assert (position.next_offset < NUM_POLLS * POLL) == lost
    apply_from(store, position.next_offset)
    assert stored_histories(store.database) == uninterrupted
    store.close()


@pytest.mark.parametrize(
    "how",
    [
        flip(0.5),
        lambda data: data.__setitem__(-30, data[-30] ^ 4),
        lambda data: data.__setitem__(slice(-3_000, None), bytes(3_000)),
    ],
    ids=["bit in the middle", "bit at the end", "zeros over the end"],
)
def test_a_damaged_log_is_refused_until_somebody_accepts_it(
    crashed: Path, uninterrupted: dict[bytes, object], how: Callable[[bytearray], object]
) -> None:
    change(largest(crashed, "*.log"), how)
    for _ in range(2):  # the first try must not have changed anything
        with pytest.raises(CorruptValue, match="write-ahead log is damaged.*--partition 3") as told:
            open_users(crashed)
        assert "--accept-log-damage" in str(told.value)
    store = open_users(crashed, accept_log_damage=True)
    position = store.position()
    assert position is not None
    assert 0 < position.next_offset < NUM_POLLS * POLL
    apply_from(store, position.next_offset)
    assert stored_histories(store.database) == uninterrupted
    store.close()
    open_users(crashed).close()


@pytest.mark.parametrize(
    ("pattern", "how"),
    [
        ("*.sst", lambda data: data.__delitem__(slice(-100, None))),
        ("*.sst", lambda data: data.clear()),
        ("*.sst", lambda data: data.__setitem__(-10, data[-10] ^ 1)),
        ("MANIFEST-*", flip(0.5)),
        ("MANIFEST-*", lambda data: data.__setitem__(slice(None), b"rubbish" * 100)),
        ("CURRENT", lambda data: data.__setitem__(slice(None), b"rubbish")),
    ],
    ids=["cut", "empty", "footer", "manifest bit", "manifest rubbish", "current rubbish"],
)
def test_damage_seen_at_the_start_names_the_file(
    flushed: Path, pattern: str, how: Callable[[bytearray], object]
) -> None:
    file = largest(flushed, pattern)
    change(file, how)
    with pytest.raises(CorruptValue, match=rf"{file.name}.*store verify.*--partition 3"):
        open_users(flushed)


@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*", "CURRENT"])
def test_a_file_that_is_gone_is_no_new_store(flushed: Path, pattern: str) -> None:
    largest(flushed, pattern).unlink()
    with pytest.raises(CorruptValue, match="--partition 3"):
        open_users(flushed)


@pytest.mark.parametrize("pattern", ["IDENTITY", "OPTIONS-*"])
def test_files_that_hold_no_state_may_be_gone(
    flushed: Path, pattern: str, uninterrupted: dict[bytes, object]
) -> None:
    for file in flushed.glob(pattern):
        file.unlink()
    store = open_users(flushed)
    assert stored_histories(store.database) == uninterrupted
    store.close()


def test_a_file_of_another_database_is_refused(flushed: Path, tmp_path: Path) -> None:
    file = largest(flushed, "*.sst")
    other = RocksStore(tmp_path / "other", RocksMemory(RocksConfig()))
    batch = Batch()
    batch.put(Family.USERS, b"key", b"value")
    other.write(batch)
    other.erase(Family.USERS, [])
    other.close()
    shutil.copy(largest(tmp_path / "other", "*.sst"), file)
    with pytest.raises(CorruptValue, match=file.name):
        open_users(flushed)


def test_a_damaged_block_is_found_by_whoever_reads_it(flushed: Path) -> None:
    file = largest(flushed, "*.sst")
    change(file, flip(0.1))
    store = RocksStore(flushed, RocksMemory(RocksConfig()))
    with pytest.raises(CorruptValue, match=rf"checksum.*{file.name}.*--partition 3"):
        read_all(store)
    heads = [keys.user_prefix(user) + keys.HEAD for user in USERS]
    with pytest.raises(CorruptValue, match=file.name):
        store.get(Family.USERS, heads)
    store.close()


def test_a_damaged_block_found_by_a_compaction_stops_the_writing(
    flushed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = largest(flushed, "*.sst")
    change(file, flip(0.1))
    store = RocksStore(flushed, RocksMemory(RocksConfig()))
    with pytest.raises(StoreError, match="erased values are still in them"):
        store.erase(Family.USERS, [EVERYTHING[1:]])
    batch = Batch()
    batch.put(Family.SYSTEM, b"key", b"value")
    with pytest.raises(CorruptValue, match=file.name):
        store.write(batch)
    store.close()
    assert "closed after a failure" in caplog.text
    RocksStore(flushed, RocksMemory(RocksConfig())).close()  # the lock was let go
