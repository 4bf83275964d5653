"""Reads the records of one user off a cursor, in key order: head, tail, chunks, summary."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from state import keys
from state.chunk_codec import encode_records
from state.head_codec import decode_head
from state.interaction import Rows
from state.key_value_store import Cursor, Family, KeyValueStore
from state.summary import Summary
from state.summary_codec import decode_summary
from state.user_state import UserMeta


@dataclass(frozen=True)
class Head:
    """Meta data and tail of one user: encoded blocks, oldest first, then the open interactions."""

    meta: UserMeta
    blocks: list[bytes]
    open_rows: Rows

    def all_blocks(self) -> list[bytes]:
        """The whole tail as encoded blocks."""
        if not len(self.open_rows):
            return self.blocks
        return [*self.blocks, encode_records(self.open_rows.tobytes())]


def scan_user(store: KeyValueStore, prefix: bytes) -> Cursor:
    """A cursor over everything of one user."""
    return store.scan(Family.USERS, prefix, keys.after(prefix))


def read_head(cursor: Cursor, prefix: bytes) -> Head | None:
    """Meta data and tail; None when there is no such user.

    A user of whom everything was deleted, and nothing came since, is no user.
    """
    key, value = next(cursor, (b"", b""))
    if key != prefix + keys.HEAD:
        return None
    meta, open_rows = decode_head(value)
    if not meta.length:
        return None
    blocks = read_tail_blocks(cursor, prefix) if meta.tail_blocks else []
    return Head(meta, [block for _, block in blocks], open_rows)


def read_tail_blocks(cursor: Cursor, prefix: bytes) -> list[tuple[bytes, bytes]]:
    """The encoded blocks of the tail with their keys, from a cursor that stands before them."""
    return list(takewhile(lambda pair: pair[0].startswith(prefix + keys.TAIL), cursor))


def read_chunks(cursor: Cursor, prefix: bytes, start: int, end: int) -> list[bytes]:
    """Encoded chunks of the positions [start, end)."""
    chunks: list[bytes] = []
    if start >= end:
        return chunks
    cursor.seek(keys.chunk_key(prefix, start))
    end_key = keys.chunk_key(prefix, end)
    for key, value in cursor:
        if key >= end_key:
            break
        chunks.append(value)
    return chunks


def read_summary(cursor: Cursor, prefix: bytes, bundle_version: str) -> Summary | None:
    """The summary under one bundle version, if there is one."""
    wanted = keys.summary_key(prefix, bundle_version)
    cursor.seek(wanted)
    key, value = next(cursor, (b"", b""))
    return decode_summary(value, bundle_version) if key == wanted else None


def by_user(
    store: KeyValueStore, start: bytes = b""
) -> Iterator[tuple[bytes, list[tuple[bytes, bytes]]]]:
    """Each user from the key `start` on with its records: what follows the user id in the key, and the value."""
    user, records = b"", list[tuple[bytes, bytes]]()
    for key, value in store.scan(Family.USERS, start, keys.all_users()[1]):
        owner, rest = keys.split_user_key(key)
        if records and owner != user:
            yield user, records
            records = []
        user = owner
        records.append((rest, value))
    if records:
        yield user, records
