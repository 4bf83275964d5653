"""What a store holds, for operators: reads only, straight from the keys."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from state import keys
from state.chunk_codec import decode_rows
from state.head_codec import decode_head, stored_length
from state.interaction import Rows, empty_rows, join_rows
from state.key_value_store import Family, KeyValueStore
from state.summary import Summary
from state.summary_codec import decode_summary
from state.user_records import naming
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


def inspect_user(store: KeyValueStore, user_id: str) -> UserInspection | None:
    """One user; None when there is no such user."""
    prefix = keys.user_prefix(user_id.encode())
    inspection = UserInspection()
    open_rows = empty_rows()
    for key, value in store.scan(Family.USERS, prefix, keys.after(prefix)):
        kind = key[len(prefix) : len(prefix) + 1]
        inspection.stored_bytes += len(key) + len(value)
        if kind == keys.HEAD:
            with naming("head"):
                inspection.meta, open_rows = decode_head(value)
        elif kind == keys.TAIL:
            with naming("tail block"):
                inspection.tail = join_rows([inspection.tail, decode_rows(value)])
        elif kind == keys.CHUNK:
            inspection.num_chunks += 1
        elif kind == keys.SUMMARY:
            version = keys.summary_bundle_version(prefix, key)
            with naming(f"summary of bundle {version}"):
                summary = decode_summary(value, version)
            inspection.summaries.append((summary, len(key) + len(value)))
    inspection.tail = join_rows([inspection.tail, open_rows])
    user = user_id.encode()
    marks = store.get(Family.SYSTEM, [keys.dirty_key(user), keys.next_dirty_key(user)])
    inspection.dirty = any(mark is not None for mark in marks)
    return inspection if inspection.meta.length else None


def users_of(store: KeyValueStore) -> Iterator[str]:
    """The users of a partition; one seek each."""
    cursor = store.scan(Family.USERS, *keys.all_users())
    for key, value in cursor:
        user, rest = keys.split_user_key(key)
        if rest == keys.HEAD and stored_length(value):  # what is left of a deleted user has none
            yield user.decode()
        cursor.seek(keys.after(keys.user_prefix(user)))


def count_dirty(store: KeyValueStore) -> int:
    """Users owed a summary of the ordinary bundle."""
    return sum(1 for _ in store.scan(Family.SYSTEM, *keys.dirty_range()))


def count_owed_next(store: KeyValueStore) -> int:
    """Users owed a summary of the bundle that is being rolled out."""
    return sum(1 for _ in store.scan(Family.SYSTEM, *keys.next_dirty_range()))
