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
from state.interaction import Rows, empty_rows
from state.key_value_store import Batch, Family, KeyValueStore
from state.record_codec import decode_meta, encode_meta
from state.segments import HistoryConfig
from state.user_records import read_chunks, read_head, scan_user
from state.user_state import UserMeta


def read_position(store: KeyValueStore, partition: int) -> Position | None:
    """How far a partition was applied; None when nothing of it was."""
    (value,) = store.get(Family.SYSTEM, [keys.offset_key(partition)])
    return None if value is None else Position.decode(value)


@dataclass
class _UserShare:
    """What a poll brought for one user: deletions, and the rows behind the last of them."""

    deletions: list[Deletion] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)


class PollBatch:
    """Builds the batch; the caller writes it, and lets nobody else write in between."""

    def __init__(self, store: KeyValueStore, history: HistoryConfig) -> None:
        """An empty batch over the store's present state."""
        self.batch = Batch()
        self.applied = Applied()
        self._store = store
        self._history = history

    def add(self, arrivals: Arrivals) -> None:
        """Put one partition's arrivals into the batch. What lies at offsets applied before is skipped."""
        position = read_position(self._store, arrivals.partition)
        stored_offset = position.next_offset if position else 0
        for user_id, share in self._share_out(arrivals, stored_offset).items():
            self._add_user(arrivals, user_id, share)
        if arrivals.position.next_offset > stored_offset:
            key = keys.offset_key(arrivals.partition)
            self.batch.put(Family.SYSTEM, key, arrivals.position.encode())

    def _share_out(self, arrivals: Arrivals, stored_offset: int) -> dict[str, _UserShare]:
        """What is left to the fold, by user, after everything simple was appended."""
        shares: dict[str, _UserShare] = {}
        for deletion in arrivals.deletions:
            if deletion.offset >= stored_offset:
                shares.setdefault(deletion.user_id, _UserShare()).deletions.append(deletion)
        first = int(np.searchsorted(arrivals.offsets, stored_offset))
        self.applied.replayed += first
        for index in self._append(arrivals, first, all_simple=not shares):
            share = shares.setdefault(arrivals.user_ids[index], _UserShare())
            if not share.deletions or share.deletions[-1].offset < arrivals.offsets[index]:
                share.indices.append(index)
        return shares

    def _append(self, arrivals: Arrivals, first: int, *, all_simple: bool) -> Sequence[int]:
        """Append what is simple, from row `first` on; returns the other rows. Deletions are never simple."""
        everything = range(first, len(arrivals.rows))
        if not everything or not all_simple:
            return everything
        left = append_newer(
            self._store,
            self._history,
            self.batch,
            arrivals.partition,
            (arrivals.user_ids[first:], arrivals.rows[first:]),
        )
        self.applied.interactions += len(everything) - len(left)
        return [first + index for index in left.tolist()]

    def _add_user(self, arrivals: Arrivals, user_id: str, share: _UserShare) -> None:
        """Fold one user."""
        prefix = keys.user_prefix(arrivals.partition, user_id)
        dirty_key = keys.dirty_key(arrivals.partition, user_id)
        meta, tail, blocks = self._read_head(prefix)
        read_sealed: Callable[[], Rows] = partial(self._read_sealed, prefix, meta)
        if share.deletions:
            meta, tail, blocks = _forgotten(meta, share.deletions), empty_rows(), []
            read_sealed = empty_rows
            self._forget(arrivals.partition, user_id, meta)
            self.applied.deletions += len(share.deletions)
        folded = fold(meta, tail, arrivals.rows[share.indices], self._history, read_sealed)
        self._put(prefix, folded, blocks)
        if folded.boundary_moved:
            boundary = folded.meta.lifecycle_boundary
            self.batch.put(Family.SYSTEM, dirty_key, boundary.to_bytes(8, "big"))
            self.applied.moved_users.append((arrivals.partition, user_id))
        elif share.deletions:
            self.batch.delete(Family.SYSTEM, dirty_key)

    def _forget(self, partition: int, user_id: str, meta: UserMeta) -> None:
        prefix = keys.user_prefix(partition, user_id)
        self.batch.remove_range(Family.USERS, prefix, keys.after(prefix))
        self.batch.put(Family.USERS, prefix + keys.META, encode_meta(meta))
        mark = keys.erase_key(partition, user_id)
        self.batch.put(Family.SYSTEM, mark, meta.epoch.to_bytes(8, "big"))

    def _put(self, prefix: bytes, folded: Fold, old_blocks: Sequence[bytes]) -> None:
        """The tail as one block in place of `old_blocks` (keys), and what left it."""
        self._count(folded)
        if not folded.applied:
            return
        meta = replace(folded.meta, tail_blocks=1)
        tail_key = keys.tail_key(prefix, meta.tail_start)
        self.batch.put(Family.USERS, prefix + keys.META, encode_meta(meta))
        self.batch.put(Family.USERS, tail_key, encode_rows(folded.tail, with_hashes=True))
        for key in old_blocks:
            if key != tail_key:
                self.batch.delete(Family.USERS, key)
        for position, rows in folded.sealed:
            if position >= meta.first_position:
                key = keys.chunk_key(prefix, position)
                self.batch.put(Family.USERS, key, encode_rows(rows, with_hashes=False))
        for position in folded.evicted:
            self.batch.delete(Family.USERS, keys.chunk_key(prefix, position))

    def _count(self, folded: Fold) -> None:
        self.applied.interactions += folded.applied
        self.applied.duplicates += folded.duplicates
        self.applied.late += folded.late
        self.applied.refused += folded.refused
        self.applied.sealed_chunks += len(folded.sealed)
        self.applied.evicted_chunks += len(folded.evicted)

    def _read_head(self, prefix: bytes) -> tuple[UserMeta, Rows, list[bytes]]:
        """Meta data, tail, and the keys of the tail's blocks."""
        (value,) = self._store.get(Family.USERS, [prefix + keys.META])
        if value is None:
            return UserMeta(), empty_rows(), []
        head = read_head(scan_user(self._store, prefix), prefix)
        if head is None:
            return decode_meta(value), empty_rows(), []
        meta, blocks = head
        rows = np.concatenate([decode_rows(block) for _, block in blocks])
        return meta, rows, [key for key, _ in blocks]

    def _read_sealed(self, prefix: bytes, meta: UserMeta) -> Rows:
        cursor = scan_user(self._store, prefix)
        chunks = read_chunks(cursor, prefix, meta.first_position, meta.tail_start)
        return np.concatenate([empty_rows(), *map(decode_rows, chunks)])


def _forgotten(meta: UserMeta, deletions: list[Deletion]) -> UserMeta:
    """What stays of a user: how often and until when everything was deleted."""
    until_ms = max(meta.deleted_until_ms, *(deletion.until_ms for deletion in deletions))
    return replace(UserMeta(), epoch=meta.epoch + len(deletions), deleted_until_ms=until_ms)
