"""KeyValueStores on rocksdict in raw mode, which share one memory budget."""

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from rocksdict import (
    AccessType,
    BottommostLevelCompaction,
    Checkpoint,
    CompactOptions,
    IngestExternalFileOptions,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
)

from state.errors import StoreClosed, StoreError
from state.key_value_store import Batch, Cursor, Family, StoreFigures
from state.rocks_errors import store_errors
from state.rocks_options import RocksMemory, database_options

__all__ = ["RocksMemory", "RocksStore"]

log = logging.getLogger(__name__)


class RocksStore:
    """KeyValueStore on disk. One process may have it open, and must not fork while it has."""

    def __init__(self, path: Path, memory: RocksMemory) -> None:
        """Open or create the database.

        Raises StoreLocked, StoreNotWritable, StoreFull, StoreError, and CorruptValue where files are damaged or gone.
        """
        self._path = path
        self._memory = memory
        self._pid = os.getpid()
        self._idle = threading.Condition()
        self._uses = 0
        self._closed = False
        with store_errors(path, opening=True):
            path.mkdir(parents=True, exist_ok=True)
            # RocksDB forgets table options on reopen unless each family gets them again.
            families = {family.value: database_options(memory) for family in Family}
            self._db = Rdict(
                str(path),
                database_options(memory),
                column_families=families,
                access_type=AccessType.read_write(),
            )
            self._families = {family: self._db.get_column_family(family.value) for family in Family}
            self._handles = {
                family: self._db.get_column_family_handle(family.value) for family in Family
            }
        if memory.config.accept_log_damage:
            log.warning(
                "%s: rocks.accept_log_damage is on; take it out again once the node has caught up",
                path,
            )

    def get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        """See KeyValueStore."""
        with self._in_use():
            return list(self._families[family].get(list(keys)) or [])

    def scan(self, family: Family, start: bytes, end: bytes) -> Cursor:
        """See KeyValueStore."""
        with self._in_use():
            options = ReadOptions()
            options.set_iterate_upper_bound(end)
            cursor = _RocksCursor(self._path, self._families[family].iter(options), options)
            cursor.seek(start)
            return cursor

    def write(self, batch: Batch) -> None:
        """See KeyValueStore."""
        with self._in_use():
            changes = WriteBatch(raw_mode=True)
            for family, start, end in batch.removed_ranges:
                changes.delete_range(start, end, self._handles[family])
            for family, key, value in batch.puts:
                changes.put(key, value, self._handles[family])
            for family, key in batch.deletes:
                changes.delete(key, self._handles[family])
            self._db.write(changes)

    def ingest(self, family: Family, files: Sequence[Path]) -> None:
        """See KeyValueStore: RocksDB links the files into its directory and syncs them."""
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        with self._in_use():
            for file in files:  # one by one, since their keys may lie among each other's
                self._families[family].ingest_external_file([str(file)], options)

    def flush(self) -> None:
        """See KeyValueStore: syncs the write-ahead log."""
        with self._in_use():
            self._db.flush_wal(True)

    def erase(self, family: Family, ranges: Sequence[tuple[bytes, bytes]]) -> None:
        """See KeyValueStore: flushes all memtables, which ends their log files, then compacts to the bottom."""
        with self._in_use():
            self._flush_families()
            failures = self._background_failures()
            options = CompactOptions()
            options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
            for start, end in ranges:
                self._families[family].compact_range(start, end, options)
            if self._background_failures() > failures:  # the driver does not tell
                raise StoreError(
                    f"{self._path}: RocksDB could not rewrite its files, so erased values are still in them; the file "
                    "LOG there says why, and the node tries again"
                )

    def flush_memory(self) -> None:
        """See KeyValueStore: flushes all memtables. Other threads go on meanwhile."""
        with self._in_use():
            self._flush_families()

    def _flush_families(self) -> None:
        for family in Family:
            self._families[family].flush()

    def checkpoint(self, path: Path) -> None:
        """See KeyValueStore: RocksDB's Checkpoint, of hard links where `path` is on the same file system.

        The driver lets no other Python thread run meanwhile: 5 ms after `flush_memory`, 100 ms and more without.
        """
        with self._in_use():
            path.parent.mkdir(parents=True, exist_ok=True)
            Checkpoint(self._db).create_checkpoint(str(path))

    def sequence(self) -> int:
        """See KeyValueStore: RocksDB's own number, which a checkpoint and a reopened database keep."""
        with self._in_use():
            return int(self._db.latest_sequence_number())

    def disk_bytes(self) -> int:
        """See KeyValueStore."""
        num_bytes = 0
        with store_errors(self._path):
            for file in self._path.iterdir():
                with suppress(FileNotFoundError):  # compacted away meanwhile
                    num_bytes += file.stat().st_size
        return num_bytes

    def figures(self) -> StoreFigures:
        """See KeyValueStore: RocksDB keeps these numbers anyway."""
        with self._in_use():
            return StoreFigures(
                disk_bytes=self.disk_bytes(),
                memtable_bytes=self._sum("rocksdb.cur-size-all-mem-tables"),
                pending_compaction_bytes=self._sum("rocksdb.estimate-pending-compaction-bytes"),
                keys=self._sum("rocksdb.estimate-num-keys"),
                block_cache_bytes=self._memory.cache.get_usage(),
            )

    def _sum(self, name: str) -> int:
        return sum(family.property_int_value(name) or 0 for family in self._families.values())

    def close(self) -> None:
        """See KeyValueStore: waits for calls under way. The lock goes with the last handle."""
        with self._idle:
            if self._closed:
                return
            self._closed = True
            self._idle.wait_for(lambda: self._uses == 0)
        self._handles.clear()
        databases = [*self._families.values(), self._db]
        self._families.clear()
        for database in databases:
            try:
                database.close()
            except Exception as error:
                # After a failed write each handle repeats the failure, which was raised then; all must go all the same.
                log.warning("%s: closed after a failure: %s", self._path, error)

    def _background_failures(self) -> int:
        return int(self._db.property_int_value("rocksdb.background-errors") or 0)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Keeps `close` waiting: the driver must not be closed while another thread is inside."""
        if os.getpid() != self._pid:
            raise StoreError(
                f"{self._path}: opened by process {self._pid}, used by its fork {os.getpid()}, whose writes would "
                "vanish; start processes with `spawn`"
            )
        with self._idle:
            if self._closed:
                raise StoreClosed(f"{self._path}: the store is closed")
            self._uses += 1
        try:
            with store_errors(self._path):
                yield
        finally:
            with self._idle:
                self._uses -= 1
                self._idle.notify_all()


class _RocksCursor:
    """Cursor on a RocksDB iterator, whose view is fixed when it is made."""

    def __init__(self, path: Path, iterator: RdictIter, options: ReadOptions) -> None:
        self._path = path
        self._iterator = iterator
        self._options = options  # owns the upper bound that the iterator points to

    def seek(self, key: bytes) -> None:
        with store_errors(self._path):
            self._iterator.seek(key)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        iterator = self._iterator
        if iterator.valid():  # a step that fails makes it invalid, and status tells
            pair: tuple[bytes, bytes] = (iterator.key(), iterator.value())
            iterator.next()
            return pair
        with store_errors(self._path):
            iterator.status()
        raise StopIteration
