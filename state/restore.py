"""Brings checkpoints back: downloaded beside the store, verified, then put in its place."""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from state.bundle_rollout import read_bundles_changed_at_ms
from state.checkpoint_manifest import Manifest, offset_of
from state.checkpoint_repository import CheckpointRepository
from state.checkpoints import check_history
from state.errors import (
    CheckpointError,
    CorruptValue,
    DamagedCheckpoint,
    NoUsableCheckpoint,
    RepositoryUnavailable,
    UnknownFormat,
)
from state.key_value_store import KeyValueStore
from state.poll_batch import read_position
from state.segments import HistoryConfig
from state.store_check import check_store
from state.store_directory import StoreDirectory
from state.store_format import history_lengths, read_format

log = logging.getLogger(__name__)

OpenDatabase = Callable[[Path], KeyValueStore]


class CheckpointRestorer:
    """Restores the stores of one node's partitions. Thread-safe as long as no partition is restored twice at a time."""

    def __init__(
        self,
        repository: CheckpointRepository,
        directory: StoreDirectory,
        history: HistoryConfig,
        open_database: OpenDatabase,
    ) -> None:
        """`open_database` opens a copy, to see that it can be."""
        self.repository = repository
        self.directory = directory
        self._history = history
        self._open_database = open_database
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Let a restore under way end with an error: the node stops."""
        self._stopping.set()

    def before_open(self, partition: int) -> None:
        """Restore the newest usable checkpoint, if the local store is missing or behind it.

        A local store is good enough when the repository cannot be reached, or nothing newer in it is usable. Raises
        CheckpointError when there is none, ConfigError when the checkpoints' histories have other lengths.
        """
        self.directory.settle(partition)
        local_offset, local_change_ms = self._local_state(partition)
        try:
            self._restore_newer(partition, local_offset, local_change_ms)
        except (RepositoryUnavailable, DamagedCheckpoint) as error:
            if self._stopping.is_set():
                raise
            if local_offset is None:
                raise self._without_store(partition, error) from error
            log.warning(
                "partition %d goes on with the store that is here, at offset %d: %s",
                partition,
                local_offset,
                error,
            )

    def _without_store(self, partition: int, error: CheckpointError) -> CheckpointError:
        begin = f"partition {partition} has no store here, and {error}"
        if isinstance(error, RepositoryUnavailable):
            return RepositoryUnavailable(begin)
        return NoUsableCheckpoint(
            f"{begin}. To build this partition alone again from what Kafka still has, move "
            f"{self.repository.shown_place(partition)} away and start the node again"
        )

    def restore(self, partition: int, name: str, *, whole: bool = False) -> Manifest:
        """Put the checkpoint called `name` into the place of the local store, whatever that is.

        `whole` reads every record of the copy first, where otherwise its files and its offset must be right.
        Raises DamagedCheckpoint, UnknownFormat, RepositoryUnavailable, ConfigError, StoreLocked, StoreError.
        """
        manifest = self.repository.read(partition, name)
        with self.directory.scratch("restore", partition) as scratch:
            with closing(self.fetch(manifest, scratch)) as database:
                if whole:
                    self._check_whole(manifest, database)
            self.directory.replace(partition, scratch)
        return manifest

    def fetch(self, manifest: Manifest, directory: Path) -> KeyValueStore:
        """Download a checkpoint into the new `directory` and open it, once it proved to be what its manifest says.

        Raises as `restore` does.
        """
        check_history(manifest, history_lengths(self._history))
        if faults := self.repository.faults(manifest):
            raise DamagedCheckpoint(f"checkpoint {manifest.name}: {'; '.join(faults)}")
        self.repository.download(manifest, directory, self._check_running)
        try:
            database = self._open_database(directory)
        except CorruptValue as error:
            raise DamagedCheckpoint(
                f"checkpoint {manifest.name} cannot be opened: {error}"
            ) from error
        try:
            self._check_copy(manifest, database)
        except CorruptValue as error:
            database.close()
            raise DamagedCheckpoint(f"checkpoint {manifest.name}: {error}") from error
        except BaseException:
            database.close()
            raise
        return database

    def _check_whole(self, manifest: Manifest, database: KeyValueStore) -> None:
        damage = check_store(database, self._history, manifest.partition).damage
        if damage:
            raise DamagedCheckpoint(
                f"checkpoint {manifest.name}: {damage[0].text}"
                + (f" (and {len(damage) - 1} more)" if len(damage) > 1 else "")
            )

    def _check_copy(self, manifest: Manifest, database: KeyValueStore) -> None:
        stored = read_format(database)
        if stored is None:
            raise CorruptValue("it holds no state")
        stored.check(self._history, manifest.partition)
        position = read_position(database)
        if position is None or position.next_offset != manifest.next_offset:
            found = "no offset" if position is None else f"offset {position.next_offset}"
            raise CorruptValue(f"it holds {found}")

    def _restore_newer(
        self, partition: int, local_offset: int | None, local_change_ms: int
    ) -> None:
        names = self.repository.names(partition)
        at_least = -1 if local_offset is None else local_offset
        newer = [
            name
            for name in names
            if offset_of(name) > at_least
            or (offset_of(name) == at_least and self._knows_more(partition, name, local_change_ms))
        ]
        if not newer:
            if not names and local_offset is None:
                log.info("partition %d has no checkpoint: it begins with what Kafka has", partition)
            return
        self._restore_first_usable(partition, newer)

    def _restore_first_usable(self, partition: int, names: Sequence[str]) -> None:
        for name in names:
            log.info("partition %d: restoring checkpoint %s", partition, name)
            try:
                manifest = self.restore(partition, name)
            except (DamagedCheckpoint, UnknownFormat) as error:
                log.error("partition %d: checkpoint %s is left out: %s", partition, name, error)  # noqa: TRY400
                continue
            log.info(
                "partition %d restored to offset %d: %d files, %d bytes",
                partition,
                manifest.next_offset,
                len(manifest.files),
                manifest.num_bytes,
            )
            return
        raise DamagedCheckpoint(
            f"none of its {len(names)} checkpoints is usable; the log says why of each"
        )

    def _knows_more(self, partition: int, name: str, local_change_ms: int) -> bool:
        """Whether a checkpoint of the same events knows of a later change of rollouts than the local store."""
        try:
            return self.repository.read(partition, name).bundles_changed_at_ms > local_change_ms
        except (DamagedCheckpoint, UnknownFormat):
            return False

    def local_offset(self, partition: int) -> int | None:
        """Where the local store stands; None when there is none. Raises StateError when it cannot be read."""
        return self._local_state(partition)[0]

    def _local_state(self, partition: int) -> tuple[int | None, int]:
        """Its offset, as above, and when an operator last changed its rollouts."""
        if not self.directory.has(partition):
            return None, 0
        database = self._open_database(self.directory.path(partition))
        try:
            position = read_position(database)
            return position.next_offset if position else 0, read_bundles_changed_at_ms(database)
        finally:
            database.close()

    def _check_running(self) -> None:
        if self._stopping.is_set():
            raise RepositoryUnavailable("the restore was given up: the node stops")
