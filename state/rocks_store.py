"""The only file that knows RocksDB: KeyValueStores on rocksdict in raw mode, which share one memory budget."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    BottommostLevelCompaction,
    Cache,
    Checkpoint,
    CompactOptions,
    DbClosedError,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteBufferManager,
)

from state.errors import CorruptValue, StoreClosed, StoreError, StoreLocked
from state.key_value_store import Batch, Cursor, Family
from state.rocks_config import RocksConfig


class RocksMemory:
    """What all databases of a process share: one block cache, and one budget for their memtables."""

    def __init__(self, config: RocksConfig) -> None:
        """Nothing is allocated before it is used."""
        self.config = config
        self.cache = Cache(config.block_cache_bytes)
        self.write_buffers = WriteBufferManager(config.memtable_bytes, allow_stall=False)


class RocksStore:
    """KeyValueStore on disk. One process may have it open.

    Values are compressed by their own codecs where that pays, so blocks are compressed with fast LZ4 only.
    """

    def __init__(self, path: Path, memory: RocksMemory) -> None:
        """Open or create the database. Raises StoreLocked when another process has it, StoreError otherwise."""
        self._path = path
        self._idle = threading.Condition()
        self._uses = 0
        self._closed = False
        with _store_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            # RocksDB forgets table options on reopen unless each family gets them again.
            families = {family.value: _options(memory) for family in Family}
            self._db = Rdict(
                str(path),
                _options(memory),
                column_families=families,
                access_type=AccessType.read_write(),
            )
            self._families = {family: self._db.get_column_family(family.value) for family in Family}
            self._handles = {
                family: self._db.get_column_family_handle(family.value) for family in Family
            }

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

    def flush(self) -> None:
        """See KeyValueStore: syncs the write-ahead log."""
        with self._in_use():
            self._db.flush_wal(True)

    def erase(self, family: Family, ranges: Sequence[tuple[bytes, bytes]]) -> None:
        """See KeyValueStore: flushes all memtables, which ends their log files, then compacts to the bottom."""
        with self._in_use():
            self._flush_families()
            options = CompactOptions()
            options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
            for start, end in ranges:
                self._families[family].compact_range(start, end, options)

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
        with _store_errors(self._path):
            return sum(file.stat().st_size for file in self._path.iterdir() if file.is_file())

    def close(self) -> None:
        """See KeyValueStore: waits for calls under way. The lock goes with the last handle."""
        with self._idle:
            if self._closed:
                return
            self._closed = True
            self._idle.wait_for(lambda: self._uses == 0)
        self._handles.clear()
        for family in self._families.values():
            family.close()
        self._families.clear()
        self._db.close()

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Keeps `close` waiting: the driver must not be closed while another thread is inside."""
        with self._idle:
            if self._closed:
                raise StoreClosed(f"{self._path}: the store is closed")
            self._uses += 1
        try:
            with _store_errors(self._path):
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
        with _store_errors(self._path):
            self._iterator.seek(key)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        with _store_errors(self._path):
            if not self._iterator.valid():
                self._iterator.status()
                raise StopIteration
            pair: tuple[bytes, bytes] = (self._iterator.key(), self._iterator.value())
            self._iterator.next()
            return pair


def _options(memory: RocksMemory) -> Options:
    config = memory.config
    table = BlockBasedOptions()
    table.set_block_cache(memory.cache)
    table.set_bloom_filter(config.bloom_bits_per_key, False)
    table.set_block_size(16 << 10)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_manager(memory.write_buffers)
    options.set_write_buffer_size(config.memtable_bytes // 4)
    # Families are flushed together, or the small one would keep old log files alive.
    options.set_atomic_flush(True)
    options.set_max_open_files(config.max_open_files)
    options.set_keep_log_file_num(4)
    options.set_paranoid_checks(True)
    return options


@contextmanager
def _store_errors(path: Path) -> Iterator[None]:
    """Map what the driver and the file system raise to this package's errors."""
    try:
        yield
    except DbClosedError as error:
        raise StoreClosed(f"{path}: the store is closed") from error
    except OSError as error:
        raise StoreError(f"{path}: {error}") from error
    except Exception as error:  # rocksdict raises bare Exception with RocksDB's status text
        if type(error) is not Exception:
            raise
        text = str(error)
        if "LOCK" in text:
            raise StoreLocked(
                f"{path}: another process has the store open; stop it or use another data directory"
            ) from error
        if text.startswith("Corruption"):
            raise CorruptValue(
                f"{path}: RocksDB reports {text}; keep a copy and restore a checkpoint"
            ) from error
        raise StoreError(f"{path}: RocksDB reports {text}") from error
