"""Stores that can be checkpointed, in a directory, for tests."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from state.arrivals import Arrivals, Deletion, Position
from state.checkpoint_config import CheckpointsConfig
from state.checkpoint_manifest import created_at_ms_of
from state.checkpoint_repository import CheckpointRepository
from state.checkpoints import CheckpointWriter, Taken
from state.interaction import empty_rows
from state.key_value_store import KeyValueStore
from state.object_storage import ObjectStorage
from state.restore import CheckpointRestorer
from state.rocks_config import RocksConfig
from state.rocks_store import RocksMemory, RocksStore
from state.segments import HistoryConfig
from state.store_directory import StoreDirectory
from state.user_store import UserStore
from tests.state.builders import SMALL, START_MS, make_rows, stored_histories

TOPIC = "interactions"
PARTITION = 3


def open_rocks(path: Path) -> KeyValueStore:
    return RocksStore(path, RocksMemory(RocksConfig()))


def always_owned() -> None:
    """Nobody else wants the partition."""


class Machine:
    """One machine with its disk, and the repository that it shares with others."""

    def __init__(self, disk: Path, uri: str, history: HistoryConfig = SMALL, keep: int = 3) -> None:
        self.directory = StoreDirectory(disk / "state")
        self.repository = CheckpointRepository(ObjectStorage(uri), TOPIC)
        self.writer = CheckpointWriter(
            self.repository, self.directory, history, CheckpointsConfig(uri=uri, keep=keep)
        )
        self.restorer = CheckpointRestorer(self.repository, self.directory, history, open_rocks)

    def open(self) -> UserStore:
        return UserStore(open_rocks(self.directory.path(PARTITION)), SMALL, PARTITION)

    def take(
        self,
        store: UserStore,
        check: Callable[[], None] = always_owned,
        *,
        prune: bool = False,
        full: bool = False,
    ) -> Taken:
        taken = self.writer.take(store, check, prune=prune, full=full)
        assert taken is not None
        return taken

    def offsets(self) -> list[int]:
        """Of the checkpoints, newest first."""
        return [int(name[:20]) for name in self.repository.names(PARTITION)]

    def restored(self) -> tuple[dict[bytes, object], Position | None]:
        """What a node finds after it restored what it wants to."""
        self.restorer.before_open(PARTITION)
        store = self.open()
        try:
            return contents(store)
        finally:
            store.close()


def contents(store: UserStore) -> tuple[dict[bytes, object], Position | None]:
    return stored_histories(store.database), store.position()


def add(store: UserStore, count: int, users: int = 5) -> None:
    """`count` more interactions, dealt out to users."""
    position = store.position()
    start = position.next_offset if position else 0
    rows = make_rows(list(range(start, start + count)), first_item=start + 1)
    names = [f"user-{n % users}".encode() for n in range(start, start + count)]
    end = Position(start + count, start)
    offsets = np.arange(start, start + count)
    store.apply(Arrivals(store.partition, end, names, offsets, rows))


def delete(store: UserStore, user: str) -> None:
    position = store.position()
    start = position.next_offset if position else 0
    deletion = Deletion(user, start, START_MS + 1_000_000)
    end = Position(start + 1, 0)
    store.apply(Arrivals(store.partition, end, [], np.arange(0), empty_rows(), [deletion]))


def wait_until_older_than_a_millisecond(machine: Machine) -> None:
    """Until prune(max_age_s=0.001) finds every checkpoint too old."""
    newest_ms = max(map(created_at_ms_of, machine.repository.names(PARTITION)))
    while time.time_ns() // 1_000_000 <= newest_ms + 1:
        pass
