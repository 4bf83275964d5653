"""A state node's name in its consumer group, kept beside its store, and its claim on both."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from state.disk_errors import disk_error
from state.errors import StoreError, StoreLocked

_FILE = "node-id"
_LOCK = "node.lock"


@contextmanager
def claim(data_dir: Path) -> Iterator[None]:
    """Keep other state nodes out of a data directory. Raises StoreLocked when one is in it, and as `node_identity` does.

    To be held before the group is joined: a second member of the same name would throw the first one out.
    """
    path = data_dir / _LOCK
    lock = FileLock(path, timeout=0)
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise StoreLocked(
            f"{data_dir}: another state node works here; stop it or use another data directory"
        ) from error
    except OSError as error:
        raise disk_error(path, str(error)) or StoreError(f"{path}: {error}") from error
    try:
        yield
    finally:
        lock.release()


def node_identity(data_dir: Path) -> str:
    """The name of the node whose data this is; made once.

    With it Kafka gives a node that was killed its partitions back at once, instead of after its session timeout.
    Raises StoreNotWritable, StoreFull or StoreError when the directory cannot be written.
    """
    path = data_dir / _FILE
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        # Empty after a crash of the machine: a new name costs one session timeout.
        if not path.exists() or not path.read_text().strip():
            _write_whole(path, f"state-node-{uuid.uuid4().hex[:12]}")
        return path.read_text().strip()
    except OSError as error:
        raise disk_error(path, str(error)) or StoreError(f"{path}: {error}") from error


def _write_whole(path: Path, text: str) -> None:
    """All of it or nothing: a process that is killed here leaves no half name."""
    scratch = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    scratch.write_text(text)
    scratch.replace(path)
