"""User states in a key-value store: apply arrivals, read users, keep offsets, dirty marks and summaries."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from state import keys
from state.arrivals import Applied, Arrivals, Position
from state.chunk_codec import decode_rows, encode_rows
from state.fold import Fold, fold
from state.interaction import Rows, empty_rows
from state.key_value_store import Batch, Cursor, Family, KeyValueStore
from state.record_codec import decode_meta, decode_summary, encode_meta, encode_summary
from state.segments import HistoryConfig
from state.store_format import check_format
from state.summary import Summary, may_replace
from state.user_state import Rolled, StoredUser, UserMeta


@dataclass(frozen=True)
class DirtyMark:
    """A user whose lifecycle boundary moved past the newest summary."""

    partition: int
    user_id: str
    lifecycle_boundary: int


class UserStore:
    """The states of all users on this node.

    Thread-safe. `_write_lock` makes each read-modify-write (apply, put_summary) whole; reads take no lock, since one
    cursor sees one moment of a user.
    """

    def __init__(self, store: KeyValueStore, history: HistoryConfig) -> None:
        """Take over `store`. Raises UnknownFormat or ConfigError when it was made differently."""
        check_format(store, history)
        self.history = history
        self._store = store
        self._write_lock = threading.Lock()

    def position(self, partition: int) -> Position | None:
        """How far the partition was applied; None when nothing of it was."""
        (value,) = self._store.get(Family.SYSTEM, [keys.offset_key(partition)])
        return None if value is None else Position.decode(value)

    def apply(self, polled: Sequence[Arrivals]) -> Applied:
        """Fold one poll into its users: states, offsets and dirty marks in one batch.

        What lies at offsets applied before is skipped. Nothing is safe from a loss of power before `flush`.
        """
        applied = Applied()
        batch = Batch()
        with self._write_lock:
            for arrivals in polled:
                self._apply_partition(arrivals, batch, applied)
            self._store.write(batch)
        return applied

    def flush(self) -> None:
        """Wait until everything applied survives a loss of power."""
        self._store.flush()

    def read_user(self, partition: int, user_id: str, bundle_version: str) -> StoredUser | None:
        """One moment of a user, without the chunks of the lifecycle segment; None when there is no such user."""
        prefix = keys.user_prefix(partition, user_id)
        cursor = self._scan_user(prefix)
        head = _read_head(cursor, prefix)
        if head is None:
            return None
        meta, tail = head
        chunks = _read_chunks(cursor, prefix, meta.lifecycle_boundary, meta.tail_start)
        summary = _read_summary(cursor, prefix, bundle_version)
        return StoredUser(meta, chunks, tail, summary)

    def read_rolled(
        self, partition: int, user_id: str, bundle_version: str, max_chunks: int
    ) -> Rolled | None:
        """At most `max_chunks` chunks between the user's summary and boundary; None when there is no such user."""
        prefix = keys.user_prefix(partition, user_id)
        cursor = self._scan_user(prefix)
        head = _read_head(cursor, prefix)
        if head is None:
            return None
        meta, _ = head
        summary = _read_summary(cursor, prefix, bundle_version)
        base = summary.boundary if summary else 0
        start = max(base, meta.first_position)
        end = min(meta.lifecycle_boundary, start + max_chunks * self.history.chunk_len)
        chunks = _read_chunks(cursor, prefix, start, end)
        return Rolled(summary, chunks, max(base, end), meta.lifecycle_boundary, meta.epoch)

    def put_summary(
        self, partition: int, user_id: str, summary: Summary, base_boundary: int, epoch: int
    ) -> tuple[bool, bool]:
        """Store `summary` if it extends what is stored; returns (stored, ends at the lifecycle boundary).

        Clears the dirty mark when complete. Durable when it returns.
        """
        prefix = keys.user_prefix(partition, user_id)
        key = keys.summary_key(prefix, summary.bundle_version)
        with self._write_lock:
            meta_value, stored_value = self._store.get(Family.USERS, [prefix + keys.META, key])
            if meta_value is None:
                return False, False
            meta = decode_meta(meta_value)
            stored = decode_summary(stored_value, summary.bundle_version) if stored_value else None
            if epoch != meta.epoch or not may_replace(
                stored, summary, base_boundary, meta.lifecycle_boundary
            ):
                return False, False
            complete = summary.boundary == meta.lifecycle_boundary
            batch = Batch()
            batch.put(Family.USERS, key, encode_summary(summary))
            if complete:
                batch.delete(Family.SYSTEM, keys.dirty_key(partition, user_id))
            self._store.write(batch)
        self._store.flush()
        return True, complete

    def mark_dirty(self, partition: int, user_id: str) -> bool:
        """Owe the user a summary, for a bundle that lacks one though the boundary stands still.

        Returns false when it is owed already, or there is no such user.
        """
        dirty_key = keys.dirty_key(partition, user_id)
        with self._write_lock:
            (mark,) = self._store.get(Family.SYSTEM, [dirty_key])
            (meta,) = self._store.get(
                Family.USERS, [keys.user_prefix(partition, user_id) + keys.META]
            )
            if mark is not None or meta is None:
                return False
            batch = Batch()
            boundary = decode_meta(meta).lifecycle_boundary
            batch.put(Family.SYSTEM, dirty_key, boundary.to_bytes(8, "big"))
            self._store.write(batch)
        return True

    def clear_if_complete(self, partition: int, user_id: str, bundle_version: str) -> None:
        """Take back a mark that no worker of this bundle has work for: its summary ends at the boundary."""
        prefix = keys.user_prefix(partition, user_id)
        with self._write_lock:
            meta, summary = self._store.get(
                Family.USERS, [prefix + keys.META, keys.summary_key(prefix, bundle_version)]
            )
            if meta is None:
                return
            end = decode_summary(summary, bundle_version).boundary if summary else 0
            if end == decode_meta(meta).lifecycle_boundary:
                batch = Batch()
                batch.delete(Family.SYSTEM, keys.dirty_key(partition, user_id))
                self._store.write(batch)

    def dirty_marks(self, partition: int) -> list[DirtyMark]:
        """Users of a partition that are owed a summary."""
        pairs = self._store.scan(Family.SYSTEM, *keys.dirty_range(partition))
        return [
            DirtyMark(partition, keys.dirty_user(key)[1], int.from_bytes(value, "big"))
            for key, value in pairs
        ]

    def _apply_partition(self, arrivals: Arrivals, batch: Batch, applied: Applied) -> None:
        position = self.position(arrivals.partition)
        stored_offset = position.next_offset if position else 0
        num_replayed = int(np.searchsorted(arrivals.offsets, stored_offset))
        applied.replayed += num_replayed
        indices_by_user: dict[str, list[int]] = {}
        for index in range(num_replayed, len(arrivals.rows)):
            indices_by_user.setdefault(arrivals.user_ids[index], []).append(index)
        prefixes = [keys.user_prefix(arrivals.partition, user_id) for user_id in indices_by_user]
        heads = self._read_heads(prefixes)
        for (user_id, indices), prefix, (meta, tail) in zip(
            indices_by_user.items(), prefixes, heads, strict=True
        ):
            read_sealed = partial(self._read_sealed, prefix, meta)
            folded = fold(meta, tail, arrivals.rows[indices], self.history, read_sealed)
            _put_fold(batch, prefix, folded)
            _count(applied, folded)
            if folded.boundary_moved:
                boundary = folded.meta.lifecycle_boundary.to_bytes(8, "big")
                batch.put(Family.SYSTEM, keys.dirty_key(arrivals.partition, user_id), boundary)
                applied.moved_users.append((arrivals.partition, user_id))
        if arrivals.position.next_offset > stored_offset:
            key = keys.offset_key(arrivals.partition)
            batch.put(Family.SYSTEM, key, arrivals.position.encode())

    def _read_heads(self, prefixes: list[bytes]) -> list[tuple[UserMeta, Rows]]:
        wanted = [prefix + kind for prefix in prefixes for kind in (keys.META, keys.TAIL)]
        values = self._store.get(Family.USERS, wanted)
        return [
            (
                UserMeta() if meta is None else decode_meta(meta),
                empty_rows() if tail is None else decode_rows(tail),
            )
            for meta, tail in zip(values[::2], values[1::2], strict=True)
        ]

    def _read_sealed(self, prefix: bytes, meta: UserMeta) -> Rows:
        cursor = self._scan_user(prefix)
        chunks = _read_chunks(cursor, prefix, meta.first_position, meta.tail_start)
        return np.concatenate([empty_rows(), *map(decode_rows, chunks)])

    def _scan_user(self, prefix: bytes) -> Cursor:
        return self._store.scan(Family.USERS, prefix, keys.after(prefix))


def _read_head(cursor: Cursor, prefix: bytes) -> tuple[UserMeta, bytes] | None:
    key, value = next(cursor, (b"", b""))
    if key != prefix + keys.META:
        return None
    key, tail = next(cursor, (b"", b""))
    return decode_meta(value), tail if key == prefix + keys.TAIL else b""


def _read_chunks(cursor: Cursor, prefix: bytes, start: int, end: int) -> list[bytes]:
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


def _read_summary(cursor: Cursor, prefix: bytes, bundle_version: str) -> Summary | None:
    wanted = keys.summary_key(prefix, bundle_version)
    cursor.seek(wanted)
    key, value = next(cursor, (b"", b""))
    return decode_summary(value, bundle_version) if key == wanted else None


def _put_fold(batch: Batch, prefix: bytes, folded: Fold) -> None:
    if not folded.applied:
        return
    batch.put(Family.USERS, prefix + keys.META, encode_meta(folded.meta))
    batch.put(Family.USERS, prefix + keys.TAIL, encode_rows(folded.tail, with_hashes=True))
    for position, rows in folded.sealed:
        if position >= folded.meta.first_position:
            batch.put(
                Family.USERS, keys.chunk_key(prefix, position), encode_rows(rows, with_hashes=False)
            )
    for position in folded.evicted:
        batch.delete(Family.USERS, keys.chunk_key(prefix, position))


def _count(applied: Applied, folded: Fold) -> None:
    applied.interactions += folded.applied
    applied.duplicates += folded.duplicates
    applied.late += folded.late
    applied.sealed_chunks += len(folded.sealed)
    applied.evicted_chunks += len(folded.evicted)
