"""A database whose directory cannot be written, for RocksDB, which writes wherever it opens one: links and copies."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from state.errors import StoreError, StoreLocked

_LOCK = "LOCK"


@contextmanager
def writable_view(path: Path) -> Iterator[Path]:
    """The database at `path` in a temporary directory: its SST files as links, the small ones as copies.

    Raises StoreLocked when it is open, StoreError.
    """
    with TemporaryDirectory(prefix="gemstream-verify-") as place:
        view = Path(place) / path.name
        try:
            _check_not_open(path / _LOCK)
            view.mkdir()
            for file in path.absolute().iterdir():
                if file.suffix == ".sst":
                    (view / file.name).symlink_to(file)
                elif file.name != _LOCK and file.is_file():
                    shutil.copyfile(file, view / file.name)
        except OSError as error:
            raise StoreError(f"{path}: {error}") from error
        yield view


def _check_not_open(lock: Path) -> None:
    if not lock.is_file():
        return
    with lock.open("rb") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreLocked(f"{lock.parent}: another process has the store open") from error
