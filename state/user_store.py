"""The user states of one partition: apply arrivals, read users, keep the position, dirty marks and summaries."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from state import keys
from state.arrivals import Applied, Arrivals, Hole, Position
from state.bundle_rollout import BundleStates, read_bundles, read_bundles_changed_at_ms
from state.errors import CorruptValue, DamagedUsers, UnknownFormat
from state.head_codec import decode_head
from state.head_table import HeadTable
from state.key_value_store import Batch, Family, KeyValueStore
from state.poll_batch import PollBatch, read_num_users, read_position
from state.quarantine import Quarantine
from state.seen_items import KnownSeen, SeenItems, distinct_items
from state.segments import HistoryConfig
from state.store_format import check_format
from state.summary import Summary, may_replace
from state.summary_codec import decode_summary, encode_summary
from state.user_delta import Known
from state.user_records import check_chunks, read_chunks, read_head, read_summary, scan_user
from state.user_state import Rolled, StoredUser, UserMeta


@dataclass(frozen=True)
class DirtyMark:
    """A user whose lifecycle boundary moved past the newest summary."""

    user_id: str
    lifecycle_boundary: int
    bundle_version: str = ""
    """Of the bundle that is being rolled out, where its summary is the one that is owed."""


@dataclass(frozen=True)
class CopiedState:
    """What a copy of the database holds, as a manifest says it."""

    position: Position | None
    sequence: int
    """Of the database; at most the copy's."""
    damaged_users: int
    bundles_changed_at_ms: int


_Known = TypeVar("_Known", Known, KnownSeen)

DEFAULT_CACHED_USERS = 16_384


def _nobody_asks() -> None:
    """Where one process alone can own the store."""


class UserStore:
    """The states of all users of one partition.

    Thread-safe. `_write_lock` makes each read-modify-write (apply, put_summary) whole; reads take no lock, since one
    cursor sees one moment of a user.
    """

    def __init__(
        self,
        store: KeyValueStore,
        history: HistoryConfig,
        partition: int,
        max_cached_users: int = DEFAULT_CACHED_USERS,
    ) -> None:
        """Take over `store`. Raises UnknownFormat, CorruptValue or ConfigError when it was made differently."""
        check_format(store, history, partition)
        self.history = history
        self.partition = partition
        self.database = store
        self._store = store
        self._table = HeadTable(store, max_cached_users)
        self._write_lock = threading.Lock()
        self.bundles = read_bundles(store)
        """Replaced whole, under the lock."""
        self.quarantine = Quarantine(store, history, partition, self._write_lock)
        self._hole_end = max((hole.end_offset for hole in self.holes()), default=0)

    def position(self) -> Position | None:
        """How far the partition was applied; None when nothing of it was."""
        return read_position(self._store)

    def num_users(self) -> int:
        """How many users have a history."""
        return read_num_users(self._store)

    def apply(self, arrivals: Arrivals, check_owner: Callable[[], None] = _nobody_asks) -> Applied:
        """Fold one poll into its users: states, position and dirty marks in one batch.

        What lies at offsets applied before is skipped. Nothing is safe from a loss of power before `flush`.
        `check_owner` is called just before the write; when it raises, nothing is written. Nor is where users are
        damaged: raises DamagedUsers with all of them, who are quarantined from then on.
        """
        with self._write_lock:
            poll = PollBatch(
                self._store,
                self._table,
                self.history,
                owes_next=bool(self.bundles.next_version),
                quarantined=self.quarantine.users,
            )
            try:
                poll.add(arrivals)
                check_owner()
                self._refuse_damaged(poll)
                for user_id in poll.erased:
                    self.quarantine.release(poll.batch, user_id)
                self._store.write(poll.batch)
            except BaseException as error:
                self._table.clear()
                if type(error) in (CorruptValue, UnknownFormat):
                    raise type(error)(f"partition {self.partition}, {error}") from error
                raise
            self.quarantine.released(poll.erased)
        return poll.applied

    def _refuse_damaged(self, poll: PollBatch) -> None:
        if poll.damaged:
            self.quarantine.add(poll.damaged)
            raise DamagedUsers(self.partition, poll.damaged)

    def rewrite(self, make_batch: Callable[[KeyValueStore], Batch]) -> None:
        """Write the batch that `make_batch` makes of what is stored, while nobody else writes."""
        with self._write_lock:
            batch = make_batch(self._store)
            self._table.clear()
            self._store.write(batch)

    def change_bundles(self, make_batch: Callable[[KeyValueStore], Batch]) -> BundleStates:
        """As `rewrite`, with batches of state/bundle_rollout.py, which leave histories alone. Raises RolloutRefused."""
        with self._write_lock:
            self._store.write(make_batch(self._store))
            self.bundles = read_bundles(self._store)
            return self.bundles

    def ingest_if_empty(
        self, files: Mapping[Family, Sequence[Path]], begun: Batch, done: Batch
    ) -> bool:
        """Take sorted files, where no user is stored yet: `begun` is written before, `done` after them.

        Returns false where there are users. Durable when it returns.
        """
        with self._write_lock:
            if next(self._store.scan(Family.USERS, *keys.all_users()), None) is not None:
                return False
            self._store.write(begun)
            self._store.flush()
            self._table.clear()
            for family, paths in files.items():
                self._store.ingest(family, paths)
            self._store.write(done)
            self._store.flush()
        return True

    def flush(self) -> None:
        """Wait until everything applied survives a loss of power."""
        self._store.flush()

    def read_user(
        self, user_id: str, bundle_version: str, known: Known | None = None
    ) -> StoredUser | None:
        """One moment of a user, without the chunks of the lifecycle segment; None when there is no such user.

        What the reader has by `known` is left out, as far as it still holds. Raises DamagedUsers, as all that reads one.
        """
        with self.quarantine.finding(user_id):
            return self._read_user(user_id, bundle_version, known)

    def _read_user(
        self, user_id: str, bundle_version: str, known: Known | None
    ) -> StoredUser | None:
        prefix = keys.user_prefix(user_id.encode())
        cursor = scan_user(self._store, prefix)
        head = read_head(cursor, prefix)
        if head is None:
            return None
        meta, known = head.meta, self._if_it_holds(known, head.meta)
        start = known.first_missing(meta) if known else meta.lifecycle_boundary
        unchanged = known is not None and known.version == meta.version
        chunks = read_chunks(cursor, prefix, start, meta.tail_start)
        check_chunks(chunks, start, self.history.chunk_len)
        summary = read_summary(cursor, prefix, bundle_version)
        has_summary = known is not None and known.has(summary)
        return StoredUser(
            meta,
            chunks,
            [] if unchanged else head.all_blocks(),
            None if has_summary else summary,
            self._hole_end,
            history_unchanged=unchanged,
            summary_unchanged=has_summary,
        )

    def read_seen(self, user_id: str, known: KnownSeen | None = None) -> SeenItems | None:
        """The items of the lifecycle segment, from where `known` ends if that holds; None when there is no such user."""
        with self.quarantine.finding(user_id):
            return self._read_seen(user_id, known)

    def _read_seen(self, user_id: str, known: KnownSeen | None) -> SeenItems | None:
        prefix = keys.user_prefix(user_id.encode())
        cursor = scan_user(self._store, prefix)
        head = read_head(cursor, prefix)
        if head is None:
            return None
        meta, known = head.meta, self._if_it_holds(known, head.meta)
        start, end = meta.first_position, meta.lifecycle_boundary
        if known is not None and start <= known.end <= end:
            start = known.end
        chunks = read_chunks(cursor, prefix, start, end)
        check_chunks(chunks, start, self.history.chunk_len)
        return SeenItems(
            epoch=meta.epoch,
            hole_end=self._hole_end,
            first_position=meta.first_position,
            start=start,
            end=end,
            item_ids=distinct_items(chunks),
        )

    def _if_it_holds(self, known: _Known | None, meta: UserMeta) -> _Known | None:
        """What a reader knows, where positions mean to it what they mean here."""
        holds = known and (known.epoch, known.hole_end) == (meta.epoch, self._hole_end)
        return known if holds else None

    def read_rolled(self, user_id: str, bundle_version: str, max_chunks: int) -> Rolled | None:
        """At most `max_chunks` chunks between the user's summary and boundary; None when there is no such user."""
        with self.quarantine.finding(user_id):
            return self._read_rolled(user_id, bundle_version, max_chunks)

    def _read_rolled(self, user_id: str, bundle_version: str, max_chunks: int) -> Rolled | None:
        prefix = keys.user_prefix(user_id.encode())
        cursor = scan_user(self._store, prefix)
        head = read_head(cursor, prefix)
        if head is None:
            return None
        meta = head.meta
        summary = read_summary(cursor, prefix, bundle_version)
        base = summary.boundary if summary else 0
        start = max(base, meta.first_position)
        end = min(meta.lifecycle_boundary, start + max_chunks * self.history.chunk_len)
        chunks = read_chunks(cursor, prefix, start, end)
        check_chunks(chunks, start, self.history.chunk_len)
        return Rolled(summary, chunks, max(base, end), meta.lifecycle_boundary, meta.epoch)

    def put_summary(
        self, user_id: str, summary: Summary, base_boundary: int, epoch: int
    ) -> tuple[bool, bool]:
        """Store `summary` if it extends what is stored; returns (stored, ends at the lifecycle boundary).

        Clears the dirty mark when complete. Durable when it returns.
        """
        user = user_id.encode()
        prefix = keys.user_prefix(user)
        key = keys.summary_key(prefix, summary.bundle_version)
        with self.quarantine.finding(user_id), self._write_lock:
            if self.bundles.is_retired(summary.bundle_version):
                return False, False
            head_value, stored_value = self._store.get(Family.USERS, [prefix + keys.HEAD, key])
            if head_value is None:
                return False, False
            meta, _ = decode_head(head_value)
            stored = decode_summary(stored_value, summary.bundle_version) if stored_value else None
            if epoch != meta.epoch or not may_replace(
                stored, summary, base_boundary, meta.lifecycle_boundary
            ):
                return False, False
            complete = summary.boundary == meta.lifecycle_boundary
            batch = Batch()
            batch.put(Family.USERS, key, encode_summary(summary))
            if complete:
                batch.delete(Family.SYSTEM, self.bundles.mark_key(user, summary.bundle_version))
            self._store.write(batch)
        self._store.flush()
        return True, complete

    def mark_dirty(self, user_id: str, bundle_version: str = "") -> bool:
        """Owe the user a summary, for a bundle that lacks one though the boundary stands still.

        Returns false when it is owed already, the bundle is retired, or there is no such user.
        """
        with self.quarantine.finding(user_id), self._write_lock:
            if self.bundles.is_retired(bundle_version):
                return False
            dirty_key = self.bundles.mark_key(user_id.encode(), bundle_version)
            (mark,) = self._store.get(Family.SYSTEM, [dirty_key])
            (head,) = self._store.get(
                Family.USERS, [keys.user_prefix(user_id.encode()) + keys.HEAD]
            )
            if mark is not None or head is None:
                return False
            batch = Batch()
            boundary = decode_head(head)[0].lifecycle_boundary
            batch.put(Family.SYSTEM, dirty_key, boundary.to_bytes(8, "big"))
            self._store.write(batch)
        return True

    def clear_if_complete(self, user_id: str, bundle_version: str) -> None:
        """Take back a mark that no worker of this bundle has work for: nothing is kept between summary and boundary."""
        prefix = keys.user_prefix(user_id.encode())
        with self.quarantine.finding(user_id), self._write_lock:
            head, summary = self._store.get(
                Family.USERS, [prefix + keys.HEAD, keys.summary_key(prefix, bundle_version)]
            )
            if head is None or self.bundles.is_retired(bundle_version):
                return
            meta, _ = decode_head(head)
            end = decode_summary(summary, bundle_version).boundary if summary else 0
            # What left the history before it was compressed is not to be had any more.
            if max(end, meta.first_position) >= meta.lifecycle_boundary:
                batch = Batch()
                mark_key = self.bundles.mark_key(user_id.encode(), bundle_version)
                batch.delete(Family.SYSTEM, mark_key)
                self._store.write(batch)

    def erase_deleted(self) -> int:
        """Let what users deleted leave the disk, too; returns how many. Takes its time; other calls go on meanwhile."""
        marks = dict(self._store.scan(Family.SYSTEM, *keys.erase_range()))
        if not marks:
            return 0
        prefixes = [keys.user_prefix(keys.erase_user(key)) for key in marks]
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

    def checkpoint(self, path: Path) -> CopiedState:
        """Make a copy of the database in the new directory `path`. Writes wait for the last milliseconds alone."""
        self._store.flush_memory()
        with self._write_lock:
            copied = CopiedState(
                read_position(self._store),
                self._store.sequence(),
                len(self.quarantine.users),
                read_bundles_changed_at_ms(self._store),
            )
            self._store.checkpoint(path)
        return copied

    def record_hole(self, end_offset: int, now_ms: int) -> None:
        """Go on at `end_offset`, and keep a record of what was never applied before it. Durable when it returns."""
        with self._write_lock:
            position = read_position(self._store)
            hole = Hole(position.next_offset if position else 0, end_offset, now_ms)
            batch = Batch()
            batch.put(Family.SYSTEM, keys.hole_key(hole.start_offset), hole.encode())
            batch.put(Family.SYSTEM, keys.POSITION_KEY, Position(end_offset, 0).encode())
            self._store.write(batch)
        self._store.flush()
        self._hole_end = end_offset

    def holes(self) -> list[Hole]:
        """What was lost to retention and accepted by an operator, oldest first."""
        pairs = self._store.scan(Family.SYSTEM, *keys.hole_range())
        return [Hole.decode(value) for _, value in pairs]

    def dirty_marks(self) -> list[DirtyMark]:
        """Users that are owed a summary; of two bundles, twice. Quarantined ones wait."""
        version, quarantined = self.bundles.next_version, self.quarantine.users
        return [
            DirtyMark(user_id, int.from_bytes(value, "big"), of_bundle)
            for (start, end), of_bundle in (
                (keys.dirty_range(), ""),
                (keys.next_dirty_range(), version),
            )
            for key, value in self._store.scan(Family.SYSTEM, start, end)
            if (user_id := key[len(start) :].decode()) not in quarantined
        ]

    def close(self) -> None:
        """Close the database once nobody writes; idempotent."""
        with self._write_lock:
            self._store.close()
