"""What RocksDB reports, as this package's errors: the driver gives a bare Exception with the status' text."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rocksdict import DbClosedError

from state.disk_errors import disk_error
from state.errors import StoreClosed, StoreDamaged, StoreError, StoreLocked

_NAMES_A_FILE = (".sst", "MANIFEST", "CURRENT", ".log", "Column family inconsistency")


@contextmanager
def store_errors(path: Path, *, opening: bool = False) -> Iterator[None]:
    """Map what the driver and the file system raise about the database at `path` to this package's errors."""
    try:
        yield
    except DbClosedError as error:
        raise StoreClosed(f"{path}: the store is closed") from error
    except OSError as error:
        raise _failure(path, str(error)) from error
    except Exception as error:
        if type(error) is not Exception:
            raise
        text = " ".join(str(error).split())
        raise (_damage(path, text, opening) or _failure(path, f"RocksDB reports {text}")) from error


def _damage(path: Path, text: str, opening: bool) -> StoreDamaged | None:
    """The error where stored bytes are wrong or gone. Nothing is repaired: what is lost must be somebody's decision."""
    if not text.startswith("Corruption") and os.strerror(errno.ENOENT) not in text:
        return None
    partition = int(path.name) if path.name.isdecimal() else "N"
    restore = (
        "`gemstream store verify --deep` finds the newest good checkpoint, `gemstream store restore --partition "
        f"{partition} --checkpoint NAME --discard-newer` brings it"
    )
    if opening and not any(name in text for name in _NAMES_A_FILE):
        return StoreDamaged(
            f"{path}: the write-ahead log is damaged before its end ({text}); stop the node and keep a copy; {restore}; "
            "or go on with what was written before the damage and read the rest from Kafka again: `gemstream run state-node --accept-log-damage`"
        )
    return StoreDamaged(f"{path}: RocksDB reports {text}; stop the node and keep a copy; {restore}")


def _failure(path: Path, what: str) -> StoreError:
    if "lock hold by current process" in what:
        return StoreLocked(f"{path}: this process has the store open already")
    if "While lock file" in what:
        return StoreLocked(
            f"{path}: another process has the store open; stop it or use another data directory"
        )
    return disk_error(path, what) or StoreError(f"{path}: {what}")
