"""Where a node's databases lie, one directory per partition, and what may lie beside them for a while."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

from state.errors import StoreError, StoreLocked

Purpose = Literal["checkpoint", "restore", "verify", "backfill", "recompress"]
_PURPOSES = get_args(Purpose)


class StoreDirectory:
    """`state/00007` is partition 7; names with a dot are work in hand, and left over from a process that was killed."""

    def __init__(self, path: Path) -> None:
        """Nothing is made before it is needed."""
        self._path = path

    def path(self, partition: int) -> Path:
        """The database of a partition, whether it is there or not."""
        return self._path / f"{partition:05d}"

    def partitions(self) -> list[int]:
        """The partitions with a database here, in order."""
        if not self._path.is_dir():
            return []
        return sorted(
            int(each.name)
            for each in self._path.iterdir()
            if each.name.isdecimal() and self.has(int(each.name))
        )

    def has(self, partition: int) -> bool:
        """Whether there is a database of a partition."""
        return (self.path(partition) / "CURRENT").is_file()

    @contextmanager
    def scratch(self, purpose: Purpose, partition: int) -> Iterator[Path]:
        """A directory on the same file system that is not there yet, and not any more afterwards."""
        path = self._path / f".{purpose}-{partition:05d}"
        with _file_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove(path)
        try:
            yield path
        finally:
            _remove(path, ignore_errors=True)

    def clean(self) -> None:
        """Remove what processes that were killed left behind. Raises StoreError."""
        with _file_errors(self._path):
            for purpose in _PURPOSES:
                for path in self._path.glob(f".{purpose}-*"):
                    _remove(path)

    def settle(self, partition: int) -> None:
        """Finish what a replacement that was killed had begun. Raises StoreError."""
        aside, path = self._aside(partition), self.path(partition)
        with _file_errors(path):
            if aside.is_dir() and not self.has(partition):
                _remove(path)
                aside.rename(path)
            _remove(aside)

    def replace(self, partition: int, fresh: Path) -> None:
        """Let `fresh` be the database of a partition; the old one is gone afterwards, not before.

        Raises StoreLocked when the old one is open, StoreError.
        """
        self.settle(partition)
        aside, path = self._aside(partition), self.path(partition)
        with _file_errors(path), _locked(path):
            if path.exists():
                path.rename(aside)
            fresh.rename(path)
        with _file_errors(aside):
            _remove(aside)

    def _aside(self, partition: int) -> Path:
        return self._path / f".replaced-{partition:05d}"


def _remove(path: Path, *, ignore_errors: bool = False) -> None:
    if path.exists():
        shutil.rmtree(path, ignore_errors=ignore_errors)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock that RocksDB takes, so that nobody opens the database meanwhile."""
    lock = path / "LOCK"
    if not path.exists():
        yield
        return
    with lock.open("a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreLocked(
                f"{path}: another process has the store open; stop the state node first"
            ) from error
        yield


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: {error}") from error
