"""The only file that knows RocksDB: a KeyValueStore on rocksdict in raw mode."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    BottommostLevelCompaction,
    Cache,
    CompactOptions,
    DbClosedError,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
)

from state.errors import CorruptValue, StoreError, StoreLocked
from state.key_value_store import Batch, Cursor, Family
from state.rocks_config import RocksConfig


class RocksStore:
    """KeyValueStore on disk. One process may have it open.

    Values are compressed by their own codecs where that pays, so blocks are compressed with fast LZ4 only.
    """

    def __init__(self, path: Path, config: RocksConfig) -> None:
        """Open or create the database. Raises StoreLocked when another process has it, StoreError otherwise."""
        self._path = path
        with _store_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            # RocksDB forgets table options on reopen unless each family gets them again.
            cache = Cache(config.block_cache_bytes)
            families = {family.value: _options(config, cache) for family in Family}
            self._db = Rdict(
                str(path),
                _options(config, cache),
                column_families=families,
                access_type=AccessType.read_write(),
            )
            self._families = {family: self._db.get_column_family(family.value) for family in Family}
            self._handles = {
                family: self._db.get_column_family_handle(family.value) for family in Family
            }

    def get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        """See KeyValueStore."""
        with _store_errors(self._path):
            return list(self._family(family).get(list(keys)) or [])

    def scan(self, family: Family, start: bytes, end: bytes) -> Cursor:
        """See KeyValueStore."""
        with _store_errors(self._path):
            options = ReadOptions()
            options.set_iterate_upper_bound(end)
            cursor = _RocksCursor(self._path, self._family(family).iter(options), options)
            cursor.seek(start)
            return cursor

    def write(self, batch: Batch) -> None:
        """See KeyValueStore."""
        with _store_errors(self._path):
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
        with _store_errors(self._path):
            self._db.flush_wal(True)

    def erase(self, family: Family, ranges: Sequence[tuple[bytes, bytes]]) -> None:
        """See KeyValueStore: flushes all memtables, which ends their log files, then compacts to the bottom."""
        with _store_errors(self._path):
            for flushed in Family:
                self._family(flushed).flush()
            options = CompactOptions()
            options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
            for start, end in ranges:
                self._family(family).compact_range(start, end, options)

    def disk_bytes(self) -> int:
        """See KeyValueStore."""
        with _store_errors(self._path):
            return sum(file.stat().st_size for file in self._path.iterdir() if file.is_file())

    def _family(self, family: Family) -> Rdict:
        if not self._families:
            raise StoreError(f"{self._path}: the store is closed")
        return self._families[family]

    def close(self) -> None:
        """See KeyValueStore. The lock goes with the last handle."""
        if not self._families:
            return
        self._handles.clear()
        for family in self._families.values():
            family.close()
        self._families.clear()
        self._db.close()


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


def _options(config: RocksConfig, cache: Cache) -> Options:
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_bloom_filter(config.bloom_bits_per_key, False)
    table.set_block_size(16 << 10)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_db_write_buffer_size(config.memtable_bytes)
    options.set_write_buffer_size(config.memtable_bytes // 4)
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
        raise StoreError(f"{path}: the store is closed") from error
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
