"""Reads the records of one user off a cursor, in key order: meta data, tail, chunks, summary."""

from state import keys
from state.key_value_store import Cursor, Family, KeyValueStore
from state.record_codec import decode_meta, decode_summary
from state.summary import Summary
from state.user_state import UserMeta


def scan_user(store: KeyValueStore, prefix: bytes) -> Cursor:
    """A cursor over everything of one user."""
    return store.scan(Family.USERS, prefix, keys.after(prefix))


def read_head(cursor: Cursor, prefix: bytes) -> tuple[UserMeta, list[tuple[bytes, bytes]]] | None:
    """Meta data and the tail's encoded blocks with their keys; None when there is no such user.

    A user of whom everything was deleted, and nothing came since, is no user.
    """
    key, value = next(cursor, (b"", b""))
    if key != prefix + keys.META:
        return None
    blocks = []
    for key, block in cursor:
        if not key.startswith(prefix + keys.TAIL):
            break
        blocks.append((key, block))
    return (decode_meta(value), blocks) if blocks else None


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
