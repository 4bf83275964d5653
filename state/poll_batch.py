"""One poll to one write batch: fold every user in it, and keep the partition's position beside the states."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from state import keys
from state.append import append_newer
from state.arrivals import Applied, Arrivals, Deletion, Position
from state.chunk_codec import decode_rows, encode_rows
from state.fold import Fold, fold
from state.head_codec import MAX_OPEN, encode_heads, meta_of
from state.head_table import HeadTable
from state.interaction import Rows, empty_rows, join_rows
from state.key_value_store import Batch, Family, KeyValueStore
from state.segments import HistoryConfig
from state.user_records import read_chunks, read_tail_blocks, scan_user
from state.user_state import UserMeta


def read_position(store: KeyValueStore) -> Position | None:
    """How far the partition was applied; None when nothing of it was."""
    (value,) = store.get(Family.SYSTEM, [keys.POSITION_KEY])
    return None if value is None else Position.decode(value)


@dataclass
class _UserShare:
    """What a poll brought for one user: deletions, and the rows behind the last of them."""

    slot: int
    deletions: list[Deletion] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)


class PollBatch:
    """Builds the batch; the caller writes it, and lets nobody else write in between.

    `table` runs ahead of the store by this batch: where the batch is not written, the table is to be cleared.
    """

    def __init__(self, store: KeyValueStore, table: HeadTable, history: HistoryConfig) -> None:
        """An empty batch over the store's present state."""
        self.batch = Batch()
        self.applied = Applied()
        self._store = store
        self._table = table
        self._history = history

    def add(self, arrivals: Arrivals) -> None:
        """Put the arrivals into the batch. What lies at offsets applied before is skipped."""
        position = read_position(self._store)
        stored_offset = position.next_offset if position else 0
        for user, share in self._share_out(arrivals, stored_offset).items():
            self._add_user(user, share, arrivals.rows[share.indices])
        if arrivals.position.next_offset > stored_offset:
            self.batch.put(Family.SYSTEM, keys.POSITION_KEY, arrivals.position.encode())

    def _share_out(self, arrivals: Arrivals, stored_offset: int) -> dict[bytes, _UserShare]:
        """What is left to the fold, by user, after everything simple was appended. Deletions are never simple."""
        first = int(np.searchsorted(arrivals.offsets, stored_offset))
        self.applied.replayed += first
        users, rows = arrivals.user_keys[first:], arrivals.rows[first:]
        deletions = [
            deletion for deletion in arrivals.deletions if deletion.offset >= stored_offset
        ]
        deleted = [deletion.user_id.encode() for deletion in deletions]
        slots = self._table.find([*deleted, *users])
        shares: dict[bytes, _UserShare] = {}
        for user, slot, deletion in zip(deleted, slots.tolist(), deletions, strict=False):
            shares.setdefault(user, _UserShare(slot)).deletions.append(deletion)
        slots = slots[len(deleted) :]
        for index in self._append(slots, rows, all_simple=not shares):
            share = shares.setdefault(users[index], _UserShare(int(slots[index])))
            if not share.deletions or share.deletions[-1].offset < arrivals.offsets[first + index]:
                share.indices.append(first + index)
        return shares

    def _append(self, slots: np.ndarray, rows: Rows, *, all_simple: bool) -> Sequence[int]:
        """Append what is simple; returns the indices of the other rows."""
        if not len(rows) or not all_simple:
            return range(len(rows))
        left = append_newer(self._table, self._history, self.batch, slots, rows)
        self.applied.interactions += len(rows) - len(left)
        indices: list[int] = left.tolist()
        return indices

    def _add_user(self, user: bytes, share: _UserShare, arrivals: Rows) -> None:
        """Fold one user."""
        prefix = keys.user_prefix(user)
        meta, tail, blocks = self._read_tail(prefix, share.slot)
        read_sealed: Callable[[], Rows] = partial(self._read_sealed, prefix, meta)
        if share.deletions:
            meta, tail, blocks = _forgotten(meta, share.deletions), empty_rows(), []
            read_sealed = empty_rows
            self._forget(user, meta)
            self.applied.deletions += len(share.deletions)
        folded = fold(meta, tail, arrivals, self._history, read_sealed)
        self._count(folded)
        if folded.applied:
            self._put_tail(user, folded, blocks)
            self._put_sealed(prefix, folded)
        if folded.boundary_moved:
            boundary = folded.meta.lifecycle_boundary
            self.batch.put(Family.SYSTEM, keys.dirty_key(user), boundary.to_bytes(8, "big"))
            self.applied.boundary_moves += 1
        elif share.deletions:
            self.batch.delete(Family.SYSTEM, keys.dirty_key(user))

    def _forget(self, user: bytes, meta: UserMeta) -> None:
        prefix = keys.user_prefix(user)
        self.batch.remove_range(Family.USERS, prefix, keys.after(prefix))
        self._put_head(user, meta, empty_rows())
        self.batch.put(Family.SYSTEM, keys.erase_key(user), meta.epoch.to_bytes(8, "big"))

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
        rows = join_rows([*(decode_rows(block) for _, block in blocks), open_rows])
        return meta, rows, [key for key, _ in blocks]

    def _read_sealed(self, prefix: bytes, meta: UserMeta) -> Rows:
        cursor = scan_user(self._store, prefix)
        chunks = read_chunks(cursor, prefix, meta.first_position, meta.tail_start)
        return join_rows(map(decode_rows, chunks))


def _forgotten(meta: UserMeta, deletions: list[Deletion]) -> UserMeta:
    """What stays of a user: how often and until when everything was deleted."""
    until_ms = max(meta.deleted_until_ms, *(deletion.until_ms for deletion in deletions))
    return replace(UserMeta(), epoch=meta.epoch + len(deletions), deleted_until_ms=until_ms)
