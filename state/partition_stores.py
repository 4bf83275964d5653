"""The partitions that this node has open, one database each."""

import threading
from collections import Counter
from collections.abc import Callable

from state.errors import StoreClosed
from state.key_value_store import KeyValueStore
from state.segments import HistoryConfig
from state.user_store import DEFAULT_CACHED_USERS, UserStore


def _nothing_to_restore(partition: int) -> None:
    """Where no checkpoints are kept."""


def _nothing_to_take(store: UserStore) -> None:
    """Where there are no backfills."""


class PartitionStores:
    """Opens and closes the stores of partitions as the node gets and loses them. Thread-safe."""

    def __init__(
        self,
        open_database: Callable[[int], KeyValueStore],
        history: HistoryConfig,
        max_cached_users: int = DEFAULT_CACHED_USERS,
        before_open: Callable[[int], None] = _nothing_to_restore,
        after_open: Callable[[UserStore], object] = _nothing_to_take,
    ) -> None:
        """`open_database` opens or creates the database of a partition; `max_cached_users` is per partition.

        `before_open` may put another database in its place first, `after_open` add to it before others see it; both may
        take their time.
        """
        self.history = history
        self._open_database = open_database
        self._max_cached_users = max_cached_users
        self._before_open = before_open
        self._after_open = after_open
        self.released_users: Counter[int] = Counter()
        """Per partition that was ever open, users who left the quarantine because they were found whole."""
        self._stores: dict[int, UserStore] = {}
        self._opening = threading.Lock()
        self._lock = threading.Lock()

    def open(self, partition: int) -> UserStore:
        """The store of a partition, opened if it is not. Raises StateError.

        Others can be closed meanwhile, but not opened.
        """
        with self._opening:
            store = self._stores.get(partition)
            if store is None:
                self._before_open(partition)
                store = self._opened(partition)
                with self._lock:
                    self._stores[partition] = store
            return store

    def _opened(self, partition: int) -> UserStore:
        database = self._open_database(partition)
        try:
            store = UserStore(database, self.history, partition, self._max_cached_users)
            self.released_users[partition] += store.quarantine.num_released
            self._after_open(store)
        except BaseException:
            database.close()
            raise
        return store

    def get(self, partition: int) -> UserStore:
        """The open store of a partition. Raises StoreClosed when it is not."""
        try:
            return self._stores[partition]
        except KeyError:
            raise StoreClosed(f"partition {partition} is not open on this node") from None

    def partitions(self) -> list[int]:
        """What is open, in order."""
        return sorted(self._stores)

    def close(self, partition: int) -> None:
        """Close a partition's store; nothing happens where it is not open."""
        with self._lock:
            store = self._stores.pop(partition, None)
        if store is not None:
            store.close()

    def close_all(self) -> None:
        """Close every store."""
        for partition in self.partitions():
            self.close(partition)
