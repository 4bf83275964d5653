"""A state node's databases, their checkpoints and backfills, as configured."""

from collections.abc import Callable

from services.errors import SettingsError
from services.settings import Settings
from services.store_verification import StoreVerification
from state.backfill_intake import BackfillIntake
from state.backfill_repository import BackfillRepository
from state.checkpoint_repository import CheckpointRepository
from state.object_storage import ObjectStorage
from state.restore import CheckpointRestorer, OpenDatabase
from state.rocks_store import RocksMemory, RocksStore
from state.store_directory import StoreDirectory


def store_directory(settings: Settings) -> StoreDirectory:
    """Where a state node's databases lie."""
    return StoreDirectory(settings.data_dir / "state")


def database_opener(settings: Settings) -> OpenDatabase:
    """Opens databases that share one budget of memory."""
    memory = RocksMemory(settings.rocks)
    return lambda path: RocksStore(path, memory)


def checkpoint_repository(settings: Settings) -> CheckpointRepository:
    """Where checkpoints are kept. Raises SettingsError when none are, ConfigError for an address of no use."""
    if settings.checkpoints.uri is None:
        raise SettingsError(
            "no checkpoints are kept: set `uri` in [checkpoints] to a directory or to s3://bucket/prefix"
        )
    storage = ObjectStorage(settings.checkpoints.uri)
    return CheckpointRepository(storage, settings.topics.interactions)


def checkpoint_restorer(settings: Settings) -> CheckpointRestorer:
    """Brings checkpoints into a state node's directory. Raises as `checkpoint_repository` does."""
    return CheckpointRestorer(
        checkpoint_repository(settings),
        store_directory(settings),
        settings.history,
        database_opener(settings),
    )


def store_verification(settings: Settings, tell: Callable[[str], None]) -> StoreVerification:
    """Checks a stopped node's stores, and the checkpoints where some are kept."""
    return StoreVerification(
        checkpoint_restorer(settings) if settings.checkpoints.uri else None,
        store_directory(settings),
        settings.history,
        database_opener(settings),
        tell,
    )


def backfill_repository(settings: Settings) -> BackfillRepository:
    """Where backfills lie. Raises SettingsError when nowhere, ConfigError for an address of no use."""
    if settings.backfills.uri is None:
        raise SettingsError(
            "there is no place for backfills: set `uri` in [backfills] to a directory or to s3://bucket/prefix that "
            "state nodes reach, too"
        )
    storage = ObjectStorage(settings.backfills.uri, "backfills")
    return BackfillRepository(storage, settings.topics.interactions)


def backfill_intake(settings: Settings) -> BackfillIntake:
    """Takes backfills into the stores of a state node."""
    return BackfillIntake(
        backfill_repository(settings),
        store_directory(settings),
        settings.history,
        settings.topics.num_partitions,
        database_opener(settings),
    )
