"""One poll to one write batch: fold every user in it, and keep the partition's position beside the states."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from state import keys
from state.append import append_newer
from state.arrivals import Applied, Arrivals, Deletion, Position
from state.chunk_codec import decode_rows, encode_rows
from state.errors import CorruptValue, StoreDamaged, UnknownFormat
from state.fold import Fold
from state.forgotten_codec import decode_forgotten, encode_forgotten
from state.forgotten_items import NOTHING_FORGOTTEN, ForgottenItems
from state.head_codec import MAX_OPEN, encode_heads, meta_of
from state.head_table import HeadTable
from state.interaction import Rows, empty_rows, join_rows
from state.key_value_store import Batch, Family, KeyValueStore
from state.segments import HistoryConfig
from state.user_fold import UserFold
from state.user_records import naming, read_chunks, read_tail_blocks, scan_user
from state.user_state import UserMeta

_Slots: TypeAlias = npt.NDArray[np.int64]
"""Of users in the head table."""


def read_position(store: KeyValueStore) -> Position | None:
    """How far the partition was applied; None when nothing of it was."""
    (value,) = store.get(Family.SYSTEM, [keys.POSITION_KEY])
    return None if value is None else Position.decode(value)


def read_num_users(store: KeyValueStore) -> int:
    """How many users of the partition have a history."""
    (value,) = store.get(Family.SYSTEM, [keys.USERS_KEY])
    return int.from_bytes(value or b"", "big")


@dataclass
class _UserShare:
    """What a poll brought for one user: deletions, and which of the rows."""

    slot: int
    deletions: list[Deletion] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)

    @property
    def erased_by(self) -> int | None:
        """Which of the deletions is the last of everything; None: none is."""
        whole = [nth for nth, deletion in enumerate(self.deletions) if not deletion.item_id]
        return whole[-1] if whole else None

    def parts(self, arrivals: Arrivals) -> list[Rows]:
        """The user's rows in offset order, cut at the deletions."""
        rows = arrivals.rows[self.indices]
        if not self.deletions:
            return [rows]
        cuts = [deletion.offset for deletion in self.deletions]
        return np.split(rows, np.searchsorted(arrivals.offsets[self.indices], cuts))


class PollBatch:
    """Builds the batch; the caller writes it, and lets nobody else write in between.

    `table` runs ahead of the store by this batch: where the batch is not written, the table is to be cleared.
    """

    def __init__(
        self,
        store: KeyValueStore,
        table: HeadTable,
        history: HistoryConfig,
        *,
        owes_next: bool = False,
        quarantined: Mapping[str, str] | None = None,
    ) -> None:
        """An empty batch over the store's present state. `owes_next`: a bundle is being rolled out."""
        self._owes_next = owes_next
        self._quarantined = quarantined or {}
        self.damaged: dict[str, str] = {}
        """Who cannot be folded, and why: a batch without them is not to be written."""
        self.erased: set[str] = set()
        """Of whom everything was deleted, unread."""
        self.batch = Batch()
        self.applied = Applied()
        self._store = store
        self._table = table
        self._history = history

    def add(self, arrivals: Arrivals) -> None:
        """Put the arrivals into the batch. What lies at offsets applied before is skipped."""
        position = read_position(self._store)
        stored_offset = position.next_offset if position else 0
        first = int(np.searchsorted(arrivals.offsets, stored_offset))
        deletions = [each for each in arrivals.deletions if each.offset >= stored_offset]
        deleted = [deletion.user_id.encode() for deletion in deletions]
        slots = self._table.find([*deleted, *arrivals.user_keys[first:]])
        involved = np.unique(slots)
        num_before = self._num_with_history(involved)
        for user, share in self._share_out(arrivals, first, deletions, slots).items():
            self._add_user(user, share, arrivals)
        if self.damaged:
            return
        if arrivals.position.next_offset > stored_offset:
            grown = self._num_with_history(involved) - num_before
            num_users = read_num_users(self._store) + grown
            self.batch.put(Family.SYSTEM, keys.USERS_KEY, num_users.to_bytes(8, "big"))
            self.batch.put(Family.SYSTEM, keys.POSITION_KEY, arrivals.position.encode())

    def _num_with_history(self, slots: _Slots) -> int:
        return int(np.count_nonzero(self._table.heads["meta"]["length"][slots]))

    def _share_out(
        self, arrivals: Arrivals, first: int, deletions: Sequence[Deletion], slots: _Slots
    ) -> dict[bytes, _UserShare]:
        """What is left to the fold, by user, after everything simple from row `first` on was appended.

        `slots` are of the users of `deletions`, then of the rows.
        """
        self.applied.replayed += first
        deleting, slots = slots[: len(deletions)], slots[len(deletions) :]
        shares: dict[bytes, _UserShare] = {}
        for deletion, slot in zip(deletions, deleting.tolist(), strict=True):
            share = shares.setdefault(deletion.user_id.encode(), _UserShare(slot))
            share.deletions.append(deletion)
        special = np.concatenate([deleting, self._unreadable(arrivals.user_keys[first:], slots)])
        for index in self._append(slots, arrivals.rows[first:], special):
            user = arrivals.user_keys[first + index]
            share = shares.setdefault(user, _UserShare(int(slots[index])))
            share.indices.append(first + index)
        return shares

    def _unreadable(self, users: Sequence[bytes], slots: _Slots) -> _Slots:
        """The slots of users who are not simply appended to: quarantined, or without a head that can be read."""
        unreadable = {*map(str.encode, self._quarantined), *self._table.damaged}
        if not unreadable:
            return np.empty(0, np.int64)
        return slots[np.fromiter((user in unreadable for user in users), np.bool_, len(users))]

    def _reason(self, user: bytes) -> str | None:
        """Why a user is not to be read; None: nothing is known against it."""
        return self._quarantined.get(user.decode()) or self._table.damaged.get(user)

    def _append(self, slots: _Slots, rows: Rows, special: _Slots) -> list[int]:
        """Append what is simple; returns the indices of the other rows. Those of users in `special` never are."""
        waits = np.isin(slots, special)
        soon = np.flatnonzero(~waits)
        if len(soon):
            chosen = soon if len(special) else slice(None)
            left = append_newer(self._table, self._history, self.batch, slots[chosen], rows[chosen])
            self.applied.interactions += len(soon) - len(left)
            waits[soon[left]] = True
        indices: list[int] = np.flatnonzero(waits).tolist()
        return indices

    def _add_user(self, user: bytes, share: _UserShare, arrivals: Arrivals) -> None:
        """Fold one user, who ends up in `damaged` where what is stored cannot be read, unless it is to be deleted."""
        reason = self._reason(user)
        if reason is None:
            try:
                self._fold_user(user, share, arrivals)
            except StoreDamaged:
                raise
            except CorruptValue as error:
                reason = str(error)
            except UnknownFormat as error:
                raise UnknownFormat(f"user {user.decode()!r}, {error}") from error
        if reason is None:
            return
        if share.erased_by is None:
            self.damaged[user.decode()] = reason
        else:
            self._fold_erased(user, share, arrivals)

    def _fold_erased(self, user: bytes, share: _UserShare, arrivals: Arrivals) -> None:
        """Nothing of a damaged user is read: what came before the deletion goes with everything, what follows is folded."""
        meta, last = meta_of(self._table.heads[share.slot]), share.erased_by or 0
        if user in self._table.damaged:
            # More than any count of deletions, so that readers of what was there before see that it is gone.
            meta = UserMeta(epoch=max(0, share.deletions[last].until_ms))
        user_fold = UserFold(meta, empty_rows(), self._history)
        parts = share.parts(arrivals)[1:]
        for nth, deletion in enumerate(share.deletions):
            self.applied.deletions += 1
            if nth < last:
                continue
            self.applied.forgotten += user_fold.delete(deletion)
            self._count(user_fold.add(parts[nth]))
        self._put_user(user, user_fold, [])
        self.erased.add(user.decode())

    def _fold_user(self, user: bytes, share: _UserShare, arrivals: Arrivals) -> None:
        prefix = keys.user_prefix(user)
        meta, tail, blocks = self._read_tail(prefix, share.slot)
        read_sealed: Callable[[], Rows] = partial(self._read_sealed, prefix, meta)
        forgotten = self._read_forgotten(prefix, meta)
        user_fold = UserFold(meta, tail, self._history, read_sealed, forgotten)
        first, *others = share.parts(arrivals)
        steps, num_forgotten = [user_fold.add(first)], 0
        for deletion, rows in zip(share.deletions, others, strict=True):
            num_forgotten += user_fold.delete(deletion)
            steps.append(user_fold.add(rows))
        for step in steps:  # not before nothing is left to be read
            self._count(step)
        self.applied.deletions += len(others)
        self.applied.forgotten += num_forgotten
        if user_fold.changed:
            self._put_user(user, user_fold, blocks)

    def _put_user(self, user: bytes, user_fold: UserFold, old_blocks: Sequence[bytes]) -> None:
        """What was folded, in place of the tail's `old_blocks` (keys) or of all that was stored."""
        prefix, folded = keys.user_prefix(user), user_fold.outcome
        if user_fold.rewritten:
            self.batch.remove_range(Family.USERS, prefix, keys.after(prefix))
            epoch = folded.meta.epoch.to_bytes(8, "big")
            self.batch.put(Family.SYSTEM, keys.erase_key(user), epoch)
        self._put_tail(user, folded, old_blocks)
        self._put_sealed(prefix, folded)
        if (forgotten := user_fold.forgotten_to_write) is not None:
            self.batch.put(Family.USERS, prefix + keys.FORGOTTEN, encode_forgotten(forgotten))
        if folded.boundary_moved:
            boundary = folded.meta.lifecycle_boundary.to_bytes(8, "big")
            self.batch.put(Family.SYSTEM, keys.dirty_key(user), boundary)
            if self._owes_next:
                self.batch.put(Family.SYSTEM, keys.next_dirty_key(user), boundary)
            self.applied.boundary_moves += 1
        elif user_fold.rewritten:
            self.batch.delete(Family.SYSTEM, keys.dirty_key(user))
            self.batch.delete(Family.SYSTEM, keys.next_dirty_key(user))

    def _put_head(self, user: bytes, meta: UserMeta, open_rows: Rows) -> None:
        head = self._table.put(user, meta, open_rows)
        (value,) = encode_heads(head)
        self.batch.put(Family.USERS, keys.user_prefix(user) + keys.HEAD, value)

    def _put_tail(self, user: bytes, folded: Fold, old_blocks: Sequence[bytes]) -> None:
        """The tail anew, open in the head if it fits or as one block, in place of `old_blocks` (keys)."""
        prefix, meta = keys.user_prefix(user), folded.meta
        block_key = None
        if len(folded.tail) <= MAX_OPEN:
            self._put_head(user, replace(meta, tail_blocks=0), folded.tail)
        else:
            self._put_head(user, replace(meta, tail_blocks=1), empty_rows())
            block_key = keys.tail_key(prefix, meta.tail_start)
            self.batch.put(Family.USERS, block_key, encode_rows(folded.tail, with_hashes=True))
        for key in old_blocks:
            if key != block_key:
                self.batch.delete(Family.USERS, key)

    def _put_sealed(self, prefix: bytes, folded: Fold) -> None:
        """Chunks that left the tail, without those that left the history, too."""
        for position, rows in folded.sealed:
            if position >= folded.meta.first_position:
                key = keys.chunk_key(prefix, position)
                self.batch.put(Family.USERS, key, encode_rows(rows, with_hashes=False))
        for position in folded.evicted:
            self.batch.delete(Family.USERS, keys.chunk_key(prefix, position))

    def _count(self, folded: Fold) -> None:
        self.applied.folds += 1
        self.applied.interactions += folded.applied
        self.applied.duplicates += folded.duplicates
        self.applied.late += folded.late
        self.applied.refused += folded.refused
        self.applied.sealed_chunks += len(folded.sealed)
        self.applied.evicted_chunks += len(folded.evicted)

    def _read_tail(self, prefix: bytes, slot: int) -> tuple[UserMeta, Rows, list[bytes]]:
        """Meta data, tail, and the keys of the tail's blocks."""
        head = self._table.heads[slot]
        meta, open_rows = meta_of(head), head["open"][: int(head["num_open"])]
        if not meta.tail_blocks:
            return meta, open_rows.copy(), []
        cursor = self._store.scan(Family.USERS, prefix + keys.TAIL, keys.after(prefix + keys.TAIL))
        blocks = read_tail_blocks(cursor, prefix)
        with naming("tail block"):
            rows = join_rows([*(decode_rows(block) for _, block in blocks), open_rows])
        return meta, rows, [key for key, _ in blocks]

    def _read_forgotten(self, prefix: bytes, meta: UserMeta) -> ForgottenItems:
        if not meta.forgotten_until_ms:
            return NOTHING_FORGOTTEN
        (value,) = self._store.get(Family.USERS, [prefix + keys.FORGOTTEN])
        with naming("forgotten items"):
            return decode_forgotten(value or b"")

    def _read_sealed(self, prefix: bytes, meta: UserMeta) -> Rows:
        cursor = scan_user(self._store, prefix)
        chunks = read_chunks(cursor, prefix, meta.first_position, meta.tail_start)
        starts = range(meta.first_position, meta.tail_start, self._history.chunk_len)
        return join_rows(map(_decode_chunk, chunks, starts))


def _decode_chunk(chunk: bytes, start: int) -> Rows:
    with naming(f"chunk {start}"):
        return decode_rows(chunk)
