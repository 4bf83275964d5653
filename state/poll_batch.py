"""One poll to one write batch: fold every user in it, and keep the partition's position beside the states."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from state import keys
from state.arrivals import Applied, Arrivals, Deletion, Position
from state.chunk_codec import decode_rows, encode_rows
from state.fold import Fold, fold
from state.interaction import Rows, empty_rows
from state.key_value_store import Batch, Family, KeyValueStore
from state.record_codec import decode_meta, encode_meta
from state.segments import HistoryConfig
from state.user_records import read_chunks, scan_user
from state.user_state import UserMeta


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
        (value,) = self._store.get(Family.SYSTEM, [keys.offset_key(arrivals.partition)])
        stored_offset = Position.decode(value).next_offset if value is not None else 0
        shares = self._share_out(arrivals, stored_offset)
        prefixes = [keys.user_prefix(arrivals.partition, user_id) for user_id in shares]
        heads = self._read_heads(prefixes)
        for (user_id, share), prefix, head in zip(shares.items(), prefixes, heads, strict=True):
            boundary = self._add_user(arrivals, share, prefix, head)
            if share.deletions:
                mark = keys.erase_key(arrivals.partition, user_id)
                self.batch.put(Family.SYSTEM, mark, b"")
                if boundary is None:
                    dirty = keys.dirty_key(arrivals.partition, user_id)
                    self.batch.delete(Family.SYSTEM, dirty)
            if boundary is not None:
                mark = keys.dirty_key(arrivals.partition, user_id)
                self.batch.put(Family.SYSTEM, mark, boundary.to_bytes(8, "big"))
                self.applied.moved_users.append((arrivals.partition, user_id))
        if arrivals.position.next_offset > stored_offset:
            key = keys.offset_key(arrivals.partition)
            self.batch.put(Family.SYSTEM, key, arrivals.position.encode())

    def _share_out(self, arrivals: Arrivals, stored_offset: int) -> dict[str, _UserShare]:
        shares: dict[str, _UserShare] = {}
        for deletion in arrivals.deletions:
            if deletion.offset >= stored_offset:
                shares.setdefault(deletion.user_id, _UserShare()).deletions.append(deletion)
        first = int(np.searchsorted(arrivals.offsets, stored_offset))
        self.applied.replayed += first
        for index in range(first, len(arrivals.rows)):
            share = shares.setdefault(arrivals.user_ids[index], _UserShare())
            if not share.deletions or share.deletions[-1].offset < arrivals.offsets[index]:
                share.indices.append(index)
        return shares

    def _add_user(
        self, arrivals: Arrivals, share: _UserShare, prefix: bytes, head: tuple[UserMeta, Rows]
    ) -> int | None:
        """Fold one user; returns the lifecycle boundary when it moved."""
        meta, tail = head
        read_sealed: Callable[[], Rows] = partial(self._read_sealed, prefix, meta)
        if share.deletions:
            meta, tail, read_sealed = _forgotten(meta, share.deletions), empty_rows(), empty_rows
            self.batch.remove_range(Family.USERS, prefix, keys.after(prefix))
            self.batch.put(Family.USERS, prefix + keys.META, encode_meta(meta))
            self.applied.deletions += len(share.deletions)
        folded = fold(meta, tail, arrivals.rows[share.indices], self._history, read_sealed)
        self._put(prefix, folded)
        return folded.meta.lifecycle_boundary if folded.boundary_moved else None

    def _put(self, prefix: bytes, folded: Fold) -> None:
        self._count(folded)
        if not folded.applied:
            return
        self.batch.put(Family.USERS, prefix + keys.META, encode_meta(folded.meta))
        self.batch.put(Family.USERS, prefix + keys.TAIL, encode_rows(folded.tail, with_hashes=True))
        for position, rows in folded.sealed:
            if position >= folded.meta.first_position:
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
        cursor = scan_user(self._store, prefix)
        chunks = read_chunks(cursor, prefix, meta.first_position, meta.tail_start)
        return np.concatenate([empty_rows(), *map(decode_rows, chunks)])


def _forgotten(meta: UserMeta, deletions: list[Deletion]) -> UserMeta:
    """What stays of a user: how often and until when everything was deleted."""
    until_ms = max(meta.deleted_until_ms, *(deletion.until_ms for deletion in deletions))
    return replace(UserMeta(), epoch=meta.epoch + len(deletions), deleted_until_ms=until_ms)
