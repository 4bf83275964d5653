"""Full and unwritable disks, told from the operating system's words: a database passes on nothing else."""

import errno
import os
import shutil
from pathlib import Path

from state.errors import StoreError, StoreFull, StoreNotWritable

_FULL = tuple(os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_NOT_WRITABLE = tuple(
    os.strerror(code)
    for code in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
)


def disk_error(path: Path, what: str) -> StoreError | None:
    """The error for what happened at `path`, where a person can do something about it; `what` is its text."""
    if any(text in what for text in _FULL):
        return StoreFull(
            f"{path}: the disk is full, {_free(path)} ({what}); nothing of the last write counts. Free space or give "
            "the data directory a larger disk, then start the node again: it goes on where its store stands"
        )
    if any(text in what for text in _NOT_WRITABLE):
        return StoreNotWritable(
            f"{path}: cannot be written as user {os.geteuid()} ({what}); data_dir must be a directory of this user's "
            "on a disk that is mounted for writing"
        )
    if os.strerror(errno.EMFILE) in what:
        return StoreError(
            f"{path}: this process has too many open files ({what}); raise `ulimit -n`, or lower rocks.max_open_files"
        )
    return None


def _free(path: Path) -> str:
    """Where the path is not there yet, its nearest directory is asked."""
    for directory in (path, *path.parents):
        if directory.is_dir():
            usage = shutil.disk_usage(directory)
            return f"{usage.free} of {usage.total} bytes are free"
    return "how full is not known"
