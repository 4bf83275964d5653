"""Writes pairs in key order into a file that a RocksDB database takes as it is."""

from collections.abc import Iterable
from pathlib import Path

from rocksdict import SstFileWriter

from state.rocks_config import RocksConfig
from state.rocks_errors import store_errors
from state.rocks_options import RocksMemory, database_options


def write_sorted_file(path: Path, pairs: Iterable[tuple[bytes, bytes]]) -> bool:
    """Write `pairs`, whose keys ascend, to `path`; returns false, and writes nothing, when there are none.

    Raises StoreError, StoreFull.
    """
    with store_errors(path):
        writer = SstFileWriter(database_options(RocksMemory(RocksConfig())))
        writer.open(str(path))
        written = False
        for key, value in pairs:
            writer[key] = value
            written = True
        if written:
            writer.finish()
    if not written:
        path.unlink(missing_ok=True)
    return written
