"""Verifies checkpoints and the local stores of a stopped node, for `gemstream store verify`."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from state.errors import (
    ConfigError,
    CorruptValue,
    DamagedCheckpoint,
    StoreError,
    StoreLocked,
    StoreNotWritable,
    UnknownFormat,
)
from state.key_value_store import KeyValueStore
from state.poll_batch import read_position
from state.restore import CheckpointRestorer, OpenDatabase
from state.segments import HistoryConfig
from state.store_check import check_store
from state.store_directory import StoreDirectory
from state.store_view import writable_view

_SHOWN_DAMAGE = 50
_IN_USE = "not checked: in use; stop the state node first"


@dataclass
class CheckpointReport:
    """What is wrong with one checkpoint."""

    partition: int
    name: str
    damage: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """For a JSON document."""
        return asdict(self)


@dataclass
class LocalReport:
    """What is wrong with one local store."""

    partition: int
    next_offset: int | None = None
    users: int = 0
    records: int = 0
    damage: list[str] = field(default_factory=list)
    left_out: str = ""
    """Why it was not looked at."""

    def document(self) -> dict[str, Any]:
        """For a JSON document."""
        return asdict(self)


class StoreVerification:
    """Reads and changes nothing; a copy that it needs lies beside the stores as long as it is looked at."""

    def __init__(
        self,
        restorer: CheckpointRestorer | None,
        directory: StoreDirectory,
        history: HistoryConfig,
        open_database: OpenDatabase,
        tell: Callable[[str], None],
    ) -> None:
        """`restorer` is None where no checkpoints are kept; `tell` hears what is being done."""
        self._restorer = restorer
        self._directory = directory
        self._history = history
        self._open_database = open_database
        self._tell = tell

    def check_checkpoints(self, partition: int | None, *, deep: bool) -> list[CheckpointReport]:
        """Each checkpoint of `partition`, or of all; none where none are kept. Raises RepositoryUnavailable.

        `deep` downloads every checkpoint and reads every record.
        """
        if self._restorer is None:
            return []
        repository = self._restorer.repository
        partitions = repository.partitions() if partition is None else [partition]
        return [
            self._check_checkpoint(self._restorer, CheckpointReport(each, name), deep=deep)
            for each in partitions
            for name in repository.names(each)
        ]

    def check_stores(self, partition: int | None) -> list[LocalReport]:
        """Each local store, or that of `partition`."""
        local = self._directory.partitions()
        return [self._check_store(each) for each in local if partition in (None, each)]

    def _check_checkpoint(
        self, restorer: CheckpointRestorer, report: CheckpointReport, *, deep: bool
    ) -> CheckpointReport:
        try:
            manifest = restorer.repository.read(report.partition, report.name)
            if not deep:
                faults = restorer.repository.faults(manifest)
                if manifest.damaged_users:
                    faults.append(f"{manifest.damaged_users} damaged users")
                report.damage = [f"checkpoint {report.name}: {fault}" for fault in faults]
                return report
            self._tell(f"partition {report.partition}: reading checkpoint {report.name} ...")
            with self._scratch(report.partition) as scratch:
                database = restorer.fetch(manifest, scratch)
                damage = self._found(database, report.partition)[1]
                report.damage = [f"checkpoint {report.name}: {each}" for each in damage]
        except (DamagedCheckpoint, UnknownFormat, ConfigError) as error:
            report.damage.append("; ".join([str(error), *getattr(error, "__notes__", [])]))
        return report

    @contextmanager
    def _scratch(self, partition: int) -> Iterator[Path]:
        """Beside the stores, or among the temporary files where nothing can be written there."""
        with ExitStack() as stack:
            stores = self._directory.path(partition).parent
            if not stores.exists() or os.access(stores, os.W_OK):
                path = stack.enter_context(self._directory.scratch("verify", partition))
            else:
                place = stack.enter_context(TemporaryDirectory(prefix="gemstream-verify-"))
                path = Path(place) / f"{partition:05d}"
            yield path

    def _check_store(self, partition: int) -> LocalReport:
        report = LocalReport(partition)
        path = self._directory.path(partition)
        self._tell(f"partition {partition}: reading {path} ...")
        try:
            self._read_store(path, report)
        except StoreNotWritable:
            self._check_unwritable(path, report)
        except StoreLocked:
            report.left_out = _IN_USE
        except (CorruptValue, StoreError) as error:
            report.damage.append(str(error))
        return report

    def _check_unwritable(self, path: Path, report: LocalReport) -> None:
        try:
            with writable_view(path) as view:
                try:
                    self._read_store(view, report)
                except (CorruptValue, StoreError) as error:
                    report.damage.append(str(error))
                report.damage = [each.replace(str(view), str(path)) for each in report.damage]
        except StoreLocked:
            report.left_out = _IN_USE
        except StoreError as error:
            report.left_out = f"not checked: {error}"

    def _read_store(self, path: Path, report: LocalReport) -> None:
        database = self._open_database(path)
        with suppress(CorruptValue):  # it is named below
            position = read_position(database)
            report.next_offset = position.next_offset if position else 0
        (report.users, report.records), report.damage = self._found(database, report.partition)

    def _found(self, database: KeyValueStore, partition: int) -> tuple[tuple[int, int], list[str]]:
        """The counts of users and records, and what is wrong; closes the database."""
        try:
            report = check_store(database, self._history, partition)
        finally:
            database.close()
        damage = [each.text for each in report.damage[:_SHOWN_DAMAGE]]
        if len(report.damage) > _SHOWN_DAMAGE:
            damage.append(f"and {len(report.damage) - _SHOWN_DAMAGE} more")
        return (report.users, report.records), damage
