"""The store's own record: its format version, its partition, and the history configuration it was made with."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from state import keys
from state.errors import ConfigError, CorruptValue, UnknownFormat
from state.key_value_store import Batch, Family, KeyValueStore
from state.segments import HistoryConfig

FORMAT_VERSION = 2


@dataclass(frozen=True)
class StoreFormat:
    """The record of a store that exists."""

    version: int
    partition: int | None
    history: dict[str, int]

    def check(self, history: HistoryConfig, partition: int) -> None:
        """Compare with what is wanted.

        Raises UnknownFormat for another format version, CorruptValue for another partition's store, and ConfigError for
        other lengths, since stored chunks and tails were cut by them.
        """
        if self.version != FORMAT_VERSION:
            raise UnknownFormat(
                f"the store has format version {self.version}; this release reads {FORMAT_VERSION}"
            )
        if self.partition != partition:
            raise CorruptValue(
                f"the store was made for partition {self.partition}, not {partition}; was a directory renamed?"
            )
        lengths = history_lengths(history)
        if self.history != lengths:
            raise ConfigError(
                f"the store was made with history {self.history}, the configuration says {lengths}; "
                "restore the setting, or use a new data directory and let Kafka fill it again"
            )


def history_lengths(history: HistoryConfig) -> dict[str, int]:
    """What must be the same where a state is used: everything but the treatment of late interactions."""
    return {name: value for name, value in asdict(history).items() if name != "late"}


def read_format(store: KeyValueStore) -> StoreFormat | None:
    """The store's record; None when it has none. Raises CorruptValue."""
    (value,) = store.get(Family.SYSTEM, [keys.FORMAT_KEY])
    if value is None:
        return None
    try:
        record: dict[str, Any] = json.loads(value)
        return StoreFormat(record["format_version"], record.get("partition"), record["history"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptValue(
            "the store's format record cannot be read; is this a Gemstream store?"
        ) from error


def check_format(store: KeyValueStore, history: HistoryConfig, partition: int) -> None:
    """Write the record into a new store; compare it in an old one, which raises as StoreFormat.check does."""
    _check_position(store)
    stored = read_format(store)
    if stored is not None:
        stored.check(history, partition)
        return
    record = {
        "format_version": FORMAT_VERSION,
        "partition": partition,
        "history": history_lengths(history),
    }
    batch = Batch()
    batch.put(Family.SYSTEM, keys.FORMAT_KEY, json.dumps(record).encode())
    store.write(batch)
    store.flush()


def _check_position(store: KeyValueStore) -> None:
    """Users and position are written together; RocksDB opens without the latter when its MANIFEST was cut short.

    Backfilled users have no position, and a record of their backfill, which is written first.
    """
    (position,) = store.get(Family.SYSTEM, [keys.POSITION_KEY])
    if next(store.scan(Family.SYSTEM, *keys.backfill_range()), None) is not None:
        return
    if position is None and next(store.scan(Family.USERS, *keys.all_users()), None) is not None:
        raise CorruptValue(
            "the store has users but no position in the log: a part of it is gone; keep a copy; "
            "`gemstream store verify --deep` finds the newest good checkpoint, `gemstream store restore --partition N "
            "--checkpoint NAME --discard-newer` brings it"
        )
