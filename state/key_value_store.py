"""The bytes-only interface to a database, and its in-memory twin."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import repeat
from pathlib import Path
from typing import Protocol, Self

from sortedcontainers import SortedDict

from state.errors import StoreError


class Family(StrEnum):
    """The column families."""

    USERS = "users"
    SYSTEM = "system"


@dataclass
class Batch:
    """Changes that become visible and durable together: ranges are removed first, then come puts, then deletes."""

    puts: list[tuple[Family, bytes, bytes]] = field(default_factory=list)
    deletes: list[tuple[Family, bytes]] = field(default_factory=list)
    removed_ranges: list[tuple[Family, bytes, bytes]] = field(default_factory=list)

    def remove_range(self, family: Family, start: bytes, end: bytes) -> None:
        """Remove what is stored at start <= key < end; puts in the same batch stay."""
        self.removed_ranges.append((family, start, end))

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """Set `key` to `value`."""
        self.puts.append((family, key, value))

    def put_many(self, family: Family, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Set each of `keys` to its value."""
        self.puts.extend(zip(repeat(family), keys, values, strict=False))

    def delete(self, family: Family, key: bytes) -> None:
        """Remove `key`; wins over a put in the same batch."""
        self.deletes.append((family, key))


class Cursor(Iterator[tuple[bytes, bytes]], Protocol):
    """Walks a range of keys in order, over one moment of the store."""

    def seek(self, key: bytes) -> None:
        """Go on with the first key that is not smaller than `key`."""
        ...


@dataclass(frozen=True)
class StoreFigures:
    """What a database holds and takes."""

    disk_bytes: int = 0
    memtable_bytes: int = 0
    pending_compaction_bytes: int = 0
    """What compactions are behind by; an estimate."""
    keys: int = 0
    """An estimate."""
    block_cache_bytes: int = 0
    """Of the cache that all databases of the process share."""


class KeyValueStore(Protocol):
    """An ordered map from bytes to bytes per family. Thread-safe; raises StoreError."""

    def get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values of `keys`, in their order; None where there is none."""
        ...

    def scan(self, family: Family, start: bytes, end: bytes) -> Cursor:
        """Pairs with start <= key < end."""
        ...

    def write(self, batch: Batch) -> None:
        """Apply a batch atomically. It survives the death of the process, and of the machine after `flush`."""
        ...

    def ingest(self, family: Family, files: Sequence[Path]) -> None:
        """Take the pairs of sorted files (state/sorted_files.py), one file after the other, and the files themselves.

        Durable when it returns. They must be on the database's file system.
        """
        ...

    def flush(self) -> None:
        """Wait until all that was written survives a loss of power."""
        ...

    def erase(self, family: Family, ranges: Sequence[tuple[bytes, bytes]]) -> None:
        """Rewrite what lies in [start, end) ranges, so that removed values leave the disk for good. Takes its time."""
        ...

    def flush_memory(self) -> None:
        """Move what is only in memory and log into files, so that a checkpoint that follows is quick. Takes its time."""
        ...

    def checkpoint(self, path: Path) -> None:
        """Make a copy of this moment in the new directory `path`, which can be opened like the store itself."""
        ...

    def sequence(self) -> int:
        """A number that every write raises; as long as it stands still, nothing has changed."""
        ...

    def disk_bytes(self) -> int:
        """Bytes of live files on disk."""
        ...

    def figures(self) -> StoreFigures:
        """What it holds and takes now; cheap, whatever its size."""
        ...

    def close(self) -> None:
        """Release the database; idempotent."""
        ...


class _MemoryCursor:
    """Cursor over a copy."""

    def __init__(self, pairs: list[tuple[bytes, bytes]]) -> None:
        self._pairs = pairs
        self._next = 0

    def seek(self, key: bytes) -> None:
        self._next = bisect_left(self._pairs, (key, b""))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        if self._next >= len(self._pairs):
            raise StopIteration
        self._next += 1
        return self._pairs[self._next - 1]


class MemoryStore:
    """KeyValueStore without a disk, for tests."""

    def __init__(self) -> None:
        """An empty store."""
        self._families: dict[Family, SortedDict[bytes, bytes]] = {
            family: SortedDict() for family in Family
        }
        self._sequence = 0

    def get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        """See KeyValueStore."""
        return [self._families[family].get(key) for key in keys]

    def scan(self, family: Family, start: bytes, end: bytes) -> Cursor:
        """See KeyValueStore."""
        values = self._families[family]
        keys = list(values.irange(start, end, inclusive=(True, False)))
        return _MemoryCursor([(key, values[key]) for key in keys])

    def write(self, batch: Batch) -> None:
        """See KeyValueStore."""
        self._sequence += 1
        for family, start, end in batch.removed_ranges:
            for key in list(self._families[family].irange(start, end, inclusive=(True, False))):
                del self._families[family][key]
        for family, key, value in batch.puts:
            self._families[family][key] = value
        for family, key in batch.deletes:
            self._families[family].pop(key, None)

    def ingest(self, family: Family, files: Sequence[Path]) -> None:
        """Raises StoreError: a store in memory takes no files."""
        raise StoreError("a store in memory takes no files")

    def flush(self) -> None:
        """Nothing to wait for."""

    def erase(self, family: Family, ranges: Sequence[tuple[bytes, bytes]]) -> None:
        """No disk."""

    def flush_memory(self) -> None:
        """No files."""

    def checkpoint(self, path: Path) -> None:
        """Raises StoreError: there is nothing to copy."""
        raise StoreError("a store in memory has no checkpoints")

    def sequence(self) -> int:
        """See KeyValueStore."""
        return self._sequence

    def disk_bytes(self) -> int:
        """No disk."""
        return 0

    def figures(self) -> StoreFigures:
        """See KeyValueStore."""
        return StoreFigures(keys=sum(map(len, self._families.values())))

    def close(self) -> None:
        """Nothing to release."""
