"""User states in a key-value store: apply arrivals, read users, keep offsets, dirty marks and summaries."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from state import keys
from state.arrivals import Applied, Arrivals, Position
from state.key_value_store import Batch, Family, KeyValueStore
from state.poll_batch import PollBatch, read_position
from state.record_codec import decode_meta, decode_summary, encode_summary
from state.segments import HistoryConfig
from state.store_format import check_format
from state.summary import Summary, may_replace
from state.user_records import read_chunks, read_head, read_summary, scan_user
from state.user_state import Rolled, StoredUser


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
        return read_position(self._store, partition)

    def apply(self, polled: Sequence[Arrivals]) -> Applied:
        """Fold one poll into its users: states, offsets and dirty marks in one batch.

        What lies at offsets applied before is skipped. Nothing is safe from a loss of power before `flush`.
        """
        with self._write_lock:
            poll = PollBatch(self._store, self.history)
            for arrivals in polled:
                poll.add(arrivals)
            self._store.write(poll.batch)
        return poll.applied

    def flush(self) -> None:
        """Wait until everything applied survives a loss of power."""
        self._store.flush()

    def read_user(self, partition: int, user_id: str, bundle_version: str) -> StoredUser | None:
        """One moment of a user, without the chunks of the lifecycle segment; None when there is no such user."""
        prefix = keys.user_prefix(partition, user_id)
        cursor = scan_user(self._store, prefix)
        head = read_head(cursor, prefix)
        if head is None:
            return None
        meta, tail = head
        chunks = read_chunks(cursor, prefix, meta.lifecycle_boundary, meta.tail_start)
        summary = read_summary(cursor, prefix, bundle_version)
        return StoredUser(meta, chunks, [block for _, block in tail], summary)

    def read_rolled(
        self, partition: int, user_id: str, bundle_version: str, max_chunks: int
    ) -> Rolled | None:
        """At most `max_chunks` chunks between the user's summary and boundary; None when there is no such user."""
        prefix = keys.user_prefix(partition, user_id)
        cursor = scan_user(self._store, prefix)
        head = read_head(cursor, prefix)
        if head is None:
            return None
        meta, _ = head
        summary = read_summary(cursor, prefix, bundle_version)
        base = summary.boundary if summary else 0
        start = max(base, meta.first_position)
        end = min(meta.lifecycle_boundary, start + max_chunks * self.history.chunk_len)
        chunks = read_chunks(cursor, prefix, start, end)
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

    def erase_deleted(self) -> int:
        """Let deleted users leave the disk, too; returns how many. Takes its time; other calls go on meanwhile."""
        marks = dict(self._store.scan(Family.SYSTEM, *keys.erase_range()))
        if not marks:
            return 0
        prefixes = [keys.user_prefix(*keys.erase_user(key)) for key in marks]
        ranges = [(prefix, keys.after(prefix)) for prefix in prefixes]
        self._store.erase(Family.USERS, ranges)
        batch = Batch()
        with self._write_lock:
            # A user deleted once more meanwhile has a newer mark, which stays for the next round.
            for key, now in zip(marks, self._store.get(Family.SYSTEM, list(marks)), strict=True):
                if now == marks[key]:
                    batch.delete(Family.SYSTEM, key)
            self._store.write(batch)
        return len(marks)

    def dirty_marks(self, partition: int) -> list[DirtyMark]:
        """Users of a partition that are owed a summary."""
        pairs = self._store.scan(Family.SYSTEM, *keys.dirty_range(partition))
        return [
            DirtyMark(partition, keys.dirty_user(key)[1], int.from_bytes(value, "big"))
            for key, value in pairs
        ]
