"""What a store holds, for operators: reads only, straight from the keys."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from state import keys
from state.arrivals import Position
from state.chunk_codec import decode_rows
from state.interaction import Rows, empty_rows
from state.key_value_store import Family, KeyValueStore
from state.record_codec import decode_meta, decode_summary
from state.summary import Summary
from state.user_state import UserMeta


@dataclass
class UserInspection:
    """Everything stored of one user, counted."""

    meta: UserMeta = field(default_factory=UserMeta)
    tail: Rows = field(default_factory=empty_rows)
    num_chunks: int = 0
    stored_bytes: int = 0
    """Keys and values."""
    dirty: bool = False
    summaries: list[tuple[Summary, int]] = field(default_factory=list)
    """Each with its stored bytes."""


def inspect_user(store: KeyValueStore, partition: int, user_id: str) -> UserInspection | None:
    """One user; None when there is no such user."""
    prefix = keys.user_prefix(partition, user_id)
    inspection = UserInspection()
    found = False
    for key, value in store.scan(Family.USERS, prefix, keys.after(prefix)):
        kind = key[len(prefix) : len(prefix) + 1]
        inspection.stored_bytes += len(key) + len(value)
        if kind == keys.META:
            inspection.meta = decode_meta(value)
        elif kind == keys.TAIL:
            inspection.tail = np.concatenate([inspection.tail, decode_rows(value)])
            found = True
        elif kind == keys.CHUNK:
            inspection.num_chunks += 1
        elif kind == keys.SUMMARY:
            summary = decode_summary(value, keys.summary_bundle_version(prefix, key))
            inspection.summaries.append((summary, len(key) + len(value)))
    (mark,) = store.get(Family.SYSTEM, [keys.dirty_key(partition, user_id)])
    inspection.dirty = mark is not None
    return inspection if found else None


def stored_offsets(store: KeyValueStore) -> dict[int, int]:
    """Next offset of every partition ever applied."""
    pairs = store.scan(Family.SYSTEM, *keys.offset_range())
    return {keys.offset_partition(key): Position.decode(value).next_offset for key, value in pairs}


def users_of(store: KeyValueStore, partition: int) -> Iterator[str]:
    """The users of a partition; one seek each."""
    cursor = store.scan(Family.USERS, *keys.partition_range(partition))
    for key, _ in cursor:
        user_id, rest = keys.split_user_key(key)
        if rest[:1] == keys.TAIL:  # what is left of a deleted user has none
            yield user_id
            cursor.seek(keys.after(keys.user_prefix(partition, user_id)))


def count_dirty(store: KeyValueStore) -> int:
    """Users owed a summary, in all partitions."""
    return sum(1 for _ in store.scan(Family.SYSTEM, *keys.dirty_range()))
