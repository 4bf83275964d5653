"""Reads the records of one user off a cursor, in key order: head, tail, chunks, summary."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile

from state import keys
from state.chunk_codec import check_rows, encode_records
from state.errors import CorruptValue, StoreDamaged, UnknownFormat
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
    """Meta data and tail, whole; None when there is no such user. Raises CorruptValue, UnknownFormat.

    A user of whom everything was deleted, and nothing came since, is no user.
    """
    key, value = next(cursor, (b"", b""))
    if key != prefix + keys.HEAD:
        return None
    with naming("head"):
        meta, open_rows = decode_head(value)
    if not meta.length:
        return None
    pairs = read_tail_blocks(cursor, prefix) if meta.tail_blocks else []
    blocks = [block for _, block in pairs]
    with naming("tail block"):
        for block in blocks:
            check_rows(block)
    return Head(meta, blocks, open_rows)


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
    if key != wanted:
        return None
    with naming(f"summary of bundle {bundle_version}"):
        return decode_summary(value, bundle_version)


def check_chunks(chunks: Sequence[bytes], start: int, chunk_len: int) -> None:
    """What is handed to others undecoded must be whole: chunks from position `start` on. Raises CorruptValue, UnknownFormat."""
    for nth, chunk in enumerate(chunks):
        with naming(f"chunk {start + nth * chunk_len}"):
            check_rows(chunk)


@contextmanager
def naming(record: str) -> Iterator[None]:
    """Let a CorruptValue or UnknownFormat say which record of the user it is about."""
    try:
        yield
    except StoreDamaged:
        raise
    except (CorruptValue, UnknownFormat) as error:
        raise type(error)(f"{record}: {error}") from error


def user_records(store: KeyValueStore, user: bytes) -> list[tuple[bytes, bytes]]:
    """Everything of one user, as `by_user` gives it."""
    prefix = keys.user_prefix(user)
    return [(key[len(prefix) :], value) for key, value in scan_user(store, prefix)]


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
