"""The store's own record: its format version, its partition, and the history configuration it was made with."""

import json
from dataclasses import asdict

from state import keys
from state.errors import ConfigError, CorruptValue, UnknownFormat
from state.key_value_store import Batch, Family, KeyValueStore
from state.segments import HistoryConfig

FORMAT_VERSION = 2


def check_format(store: KeyValueStore, history: HistoryConfig, partition: int) -> None:
    """Write the record into a new store; compare it in an old one.

    Raises UnknownFormat for another format version, CorruptValue for another partition's store, and ConfigError for
    other lengths, since stored chunks and tails were cut by them.
    """
    _check_position(store)
    lengths = {name: value for name, value in asdict(history).items() if name != "late"}
    (value,) = store.get(Family.SYSTEM, [keys.FORMAT_KEY])
    if value is None:
        batch = Batch()
        record = {"format_version": FORMAT_VERSION, "partition": partition, "history": lengths}
        batch.put(Family.SYSTEM, keys.FORMAT_KEY, json.dumps(record).encode())
        store.write(batch)
        store.flush()
        return
    try:
        record = json.loads(value)
        version, stored_lengths = record["format_version"], record["history"]
        stored_partition = record.get("partition")
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptValue(
            "the store's format record cannot be read; is this a Gemstream store?"
        ) from error
    if version != FORMAT_VERSION:
        raise UnknownFormat(
            f"the store has format version {version}; this release reads {FORMAT_VERSION}"
        )
    if stored_partition != partition:
        raise CorruptValue(
            f"the store was made for partition {stored_partition}, not {partition}; was a directory renamed?"
        )
    if stored_lengths != lengths:
        raise ConfigError(
            f"the store was made with history {stored_lengths}, the configuration says {lengths}; "
            "restore the setting, or use a new data directory and let Kafka fill it again"
        )


def _check_position(store: KeyValueStore) -> None:
    """Users and position are written together; RocksDB opens without the latter when its MANIFEST was cut short."""
    (position,) = store.get(Family.SYSTEM, [keys.POSITION_KEY])
    if position is None and next(store.scan(Family.USERS, *keys.all_users()), None) is not None:
        raise CorruptValue(
            "the store has users but no position in the log: a part of it is gone; keep a copy, then restore a "
            "checkpoint: gemstream store restore"
        )
