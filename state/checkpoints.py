"""Takes checkpoints: a copy of a store beside it, its files into the repository, the manifest last."""

import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path

from state.checkpoint_config import CheckpointsConfig
from state.checkpoint_manifest import Manifest, StoredFile
from state.checkpoint_repository import CheckpointRepository
from state.errors import (
    CheckpointError,
    ConfigError,
    CorruptValue,
    DamagedCheckpoint,
    StoreError,
    UnknownFormat,
)
from state.segments import HistoryConfig
from state.store_directory import StoreDirectory
from state.store_format import history_lengths
from state.user_store import UserStore

log = logging.getLogger(__name__)

_IMMUTABLE = ".sst"
_SESSION = re.compile(rb"session\.identity([0-9A-Z]{20})")
"""Among a table's properties, which lie behind its data, never compressed."""
_TABLE_END_BYTES = 65_536


@dataclass(frozen=True)
class Taken:
    """The newest checkpoint of a partition, and what it cost."""

    manifest: Manifest
    uploaded_bytes: int = 0
    seconds: float = 0.0
    is_new: bool = True
    """False when nothing had been written since the one before."""


class CheckpointWriter:
    """Takes checkpoints of open stores, one at a time. Thread-safe; calls block until all is uploaded."""

    def __init__(
        self,
        repository: CheckpointRepository,
        directory: StoreDirectory,
        history: HistoryConfig,
        config: CheckpointsConfig,
    ) -> None:
        """`directory` is where the stores lie: a copy on the same file system is made of hard links."""
        self._repository = repository
        self._directory = directory
        self._history = history_lengths(history)
        self._config = config
        self._hashes: dict[int, _FileHashes] = {}
        self._lock = threading.Lock()

    def newest(self, partition: int) -> Manifest | None:
        """The newest checkpoint whose manifest can be read. Raises RepositoryUnavailable."""
        for name in self._repository.names(partition):
            try:
                return self._repository.read(partition, name)
            except (DamagedCheckpoint, UnknownFormat) as error:
                log.warning("partition %d goes by an older checkpoint: %s", partition, error)
        return None

    def take(
        self,
        store: UserStore,
        check_owner: Callable[[], None],
        *,
        prune: bool = False,
        full: bool = False,
    ) -> Taken | None:
        """Take a checkpoint, unless nothing was written since the last; then remove those beyond what is kept.

        `prune` lets deleted users leave the store's files first, and removes all but the newest. `full` takes one
        anyway, and uploads every file anew. None for a store that nothing was applied to. `check_owner` is called
        while files are uploaded and before anything becomes visible or is removed; what it raises ends the call.
        Raises CheckpointError, StoreError, CorruptValue when a file of the store changed that never should, and
        ConfigError when the repository holds histories of other lengths.
        """
        with self._lock:
            if prune:
                store.erase_deleted()
            taken = self._take(store, check_owner, full=full)
            if taken is not None:
                check_owner()
                keep = 1 if prune else self._config.keep
                self._repository.prune(store.partition, keep, self._config.max_age_s)
            return taken

    def _take(
        self, store: UserStore, check_owner: Callable[[], None], *, full: bool
    ) -> Taken | None:
        started_s = time.monotonic()
        newest = self.newest(store.partition)
        if newest is not None:
            check_history(newest, self._history)
            if not full and _unchanged(store, newest) and not self._repository.faults(newest):
                return Taken(newest, is_new=False)
        with self._directory.scratch("checkpoint", store.partition) as scratch:
            copied = store.checkpoint(scratch)
            if copied.position is None:
                return None
            next_offset = copied.position.next_offset
            _check_not_behind(newest, store.partition, next_offset)
            hashes = self._hashes.setdefault(store.partition, _FileHashes())
            manifest = Manifest(
                topic=self._repository.topic,
                partition=store.partition,
                next_offset=next_offset,
                sequence=copied.sequence,
                created_at_ms=time.time_ns() // 1_000_000,
                history=self._history,
                files=hashes.describe(scratch, check_owner),
                damaged_users=copied.damaged_users,
                bundles_changed_at_ms=copied.bundles_changed_at_ms,
            )
            if newest is not None:
                self._check_immutable(newest, manifest, scratch)
            uploaded_bytes = self._repository.publish(manifest, scratch, check_owner, full=full)
        return Taken(manifest, uploaded_bytes, time.monotonic() - started_s)

    def _check_immutable(self, newest: Manifest, manifest: Manifest, directory: Path) -> None:
        """An SST file is never written again: the same name and size with other contents is damage on the disk."""
        before = {(file.name, file.num_bytes): file for file in newest.files}
        for file in manifest.files:
            old = before.get((file.name, file.num_bytes))
            if old is None or old.sha256 == file.sha256 or not file.name.endswith(_IMMUTABLE):
                continue
            if self._is_another_table(newest, old, directory / file.name):
                continue
            raise CorruptValue(
                f"the store of partition {manifest.partition} is damaged on disk: {file.name} is not what it was in "
                f"checkpoint {newest.name}; no checkpoint is taken of it. Stop the node: `gemstream store verify "
                "--deep` finds the newest good checkpoint, `gemstream store restore --partition "
                f"{manifest.partition} --checkpoint NAME --discard-newer` brings it"
            )

    def _is_another_table(self, newest: Manifest, old: StoredFile, path: Path) -> bool:
        """Whether it was another node, on its own way to this state, that made a file of that name and size."""
        try:
            theirs = _made_by(self._repository.end_of(newest, old, _TABLE_END_BYTES))
            ours = _made_by(path.read_bytes()[-_TABLE_END_BYTES:])
        except DamagedCheckpoint:
            return False
        except OSError as error:
            raise StoreError(f"{path}: {error}") from error
        return None not in (theirs, ours) and theirs != ours


class _FileHashes:
    """The files of one store with their hashes; an SST file, which never changes, is read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int], str] = {}

    def describe(self, directory: Path, check_owner: Callable[[], None]) -> tuple[StoredFile, ...]:
        """Every file of `directory`. Raises StoreError."""
        files, known = [], {}
        try:
            for path in sorted(directory.iterdir()):
                about = path.stat()
                key = (path.name, about.st_size, about.st_mtime_ns)
                digest = self._known.get(key)
                if digest is None:
                    check_owner()
                    with path.open("rb") as content:
                        digest = file_digest(content, "sha256").hexdigest()
                if path.suffix == _IMMUTABLE:
                    known[key] = digest
                files.append(StoredFile(path.name, about.st_size, digest))
        except OSError as error:
            raise StoreError(f"{directory}: {error}") from error
        self._known = known
        return tuple(files)


def check_history(manifest: Manifest, lengths: dict[str, int]) -> None:
    """Raises ConfigError when the checkpoint's histories were cut by other lengths."""
    if manifest.history != lengths:
        raise ConfigError(
            f"checkpoint {manifest.name} of partition {manifest.partition} was made with history {manifest.history}, "
            f"the configuration says {lengths}; restore the setting, or set another checkpoints.uri for states that "
            "are built anew"
        )


def _made_by(table: bytes) -> bytes | None:
    """The run of a database that an SST file came from, as RocksDB notes it; None where it cannot be found."""
    found = _SESSION.search(table)
    return found[1] if found else None


def _unchanged(store: UserStore, newest: Manifest) -> bool:
    position = store.position()
    return (
        position is not None
        and position.next_offset == newest.next_offset
        and store.database.sequence() == newest.sequence
    )


def _check_not_behind(newest: Manifest | None, partition: int, next_offset: int) -> None:
    """An older state must not pass for the newest; its owner would have restored that one first."""
    if newest is not None and newest.next_offset > next_offset:
        raise CheckpointError(
            f"partition {partition} stands at offset {next_offset}, and there is a checkpoint of offset "
            f"{newest.next_offset} already; where the topic was made anew, or two deployments share a checkpoints.uri, "
            "set another one"
        )
