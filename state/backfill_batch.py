"""Backfilled users to one write batch over the live store: taken as they are, merged, or left alone."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial

from state import keys
from state.backfill_merge import StoredHistory, merge_histories
from state.chunk_codec import decode_rows, encode_rows
from state.errors import CorruptValue, DamagedCheckpoint, StoreDamaged
from state.fold import Fold
from state.forgotten_codec import decode_forgotten
from state.forgotten_items import NOTHING_FORGOTTEN
from state.head_codec import MAX_OPEN, decode_head, encode_heads, make_head
from state.interaction import empty_rows, join_rows
from state.key_value_store import Batch, Family, KeyValueStore
from state.poll_batch import read_num_users
from state.segments import HistoryConfig
from state.summary_codec import decode_summary
from state.user_state import UserMeta

Records = list[tuple[bytes, bytes]]
"""Of one user, in key order: what follows the user id in the key, and the value."""


@dataclass
class Taken:
    """What came of backfills."""

    users: int = 0
    """Whose records changed."""
    interactions: int = 0
    """That were not live."""
    repetitions: int = 0
    """Live interactions that gave way to the same ones of a backfill."""

    def add(self, other: "Taken") -> None:
        """Count another's, too."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class BackfillBatch:
    """Builds the batch; the caller writes it, and lets nobody else write in between."""

    def __init__(self, store: KeyValueStore, history: HistoryConfig) -> None:
        """An empty batch over the live store's present state."""
        self.batch = Batch()
        self.taken = Taken()
        self.damaged: dict[str, str] = {}
        """Who is left out, since what is stored of them is damaged, and how."""
        self._store = store
        self._history = history
        self._num_new = 0

    def add_histories(self, users: Sequence[tuple[bytes, Records]]) -> None:
        """Whole histories with their summaries. Raises DamagedCheckpoint for a damaged one, and the batch is void."""
        head_keys = [keys.user_prefix(user) + keys.HEAD for user, _ in users]
        heads = self._store.get(Family.USERS, head_keys)
        for (user, records), head in zip(users, heads, strict=True):
            if head is None:
                with _reading_backfill(user):
                    self._put(user, records)
                self._num_new += 1
            else:
                with _reading_backfill(user):
                    backfilled, ends = _history_of(records), _summary_ends(records)
                self._unless_damaged(user, partial(self._merge, user, records, backfilled, ends))
        num_users = read_num_users(self._store) + self._num_new
        self.batch.put(Family.SYSTEM, keys.USERS_KEY, num_users.to_bytes(8, "big"))

    def add_summaries(self, users: Sequence[tuple[bytes, Records]]) -> None:
        """Summaries, each user's beside the head of the history that they were made of. Raises as above."""
        for user, records in users:
            with _reading_backfill(user):
                (made_of, _), ends = decode_head(_head(records)), _summary_ends(records)
            add = partial(self._add_summaries, user, dict(records), made_of, ends)
            self._unless_damaged(user, add)

    def _unless_damaged(self, user: bytes, add: Callable[[], None]) -> None:
        """`add` decodes what is stored of the user before it changes the batch, so that who is left out is so wholly."""
        (mark,) = self._store.get(Family.SYSTEM, [keys.damaged_key(user)])
        if mark is not None:
            self.damaged[user.decode()] = "quarantined"
            return
        try:
            add()
        except StoreDamaged:
            raise
        except CorruptValue as error:
            self.damaged[user.decode()] = str(error)

    def _add_summaries(
        self, user: bytes, values: dict[bytes, bytes], made_of: UserMeta, ends: dict[bytes, int]
    ) -> None:
        prefix = keys.user_prefix(user)
        live_head, mark = (
            *self._store.get(Family.USERS, [prefix + keys.HEAD]),
            *self._store.get(Family.SYSTEM, [keys.dirty_key(user)]),
        )
        if live_head is None:
            return
        live = decode_head(live_head)[0]
        if live.epoch != made_of.epoch:
            return
        extending = [rest for rest, end in ends.items() if self._extends(prefix + rest, end, live)]
        for rest in extending:
            self.batch.put(Family.USERS, prefix + rest, values[rest])
            self.taken.users += 1
        if mark is None and not _is_complete(ends, live.lifecycle_boundary):
            self._mark_dirty(user, live)

    def _extends(self, key: bytes, end: int, live: UserMeta) -> bool:
        """Whether a summary says more than the stored one, and no more than there is."""
        (stored,) = self._store.get(Family.USERS, [key])
        stored_boundary = decode_summary(stored, "").boundary if stored else 0
        return stored_boundary < end <= live.lifecycle_boundary

    def _put(self, user: bytes, records: Records) -> None:
        """As the user's first records, beside nothing."""
        prefix = keys.user_prefix(user)
        for rest, value in records:
            self.batch.put(Family.USERS, prefix + rest, value)
        meta, _ = decode_head(_head(records))
        self._owe_summary(user, _summary_ends(records), meta)
        self.taken.add(Taken(users=1, interactions=meta.length))

    def _merge(
        self, user: bytes, records: Records, backfilled: StoredHistory, ends: dict[bytes, int]
    ) -> None:
        prefix = keys.user_prefix(user)
        stored = self._store.scan(Family.USERS, prefix, keys.after(prefix))
        live_records = [(key[len(prefix) :], value) for key, value in stored]
        live = _history_of(live_records)
        merged = merge_histories(live, backfilled, self._history)
        if merged is None:
            self._owe_summary(user, _summary_ends(live_records), live.meta)
            return
        outcome = merged.outcome
        kept = [
            (rest, value)
            for rest, value in records
            if merged.is_whole and _holds(rest, outcome.meta.first_position)
        ]
        kept += [pair for pair in live_records if pair[0][:1] == keys.FORGOTTEN]
        fresh = [*_encode(outcome, self._history), *kept]
        self.batch.remove_range(Family.USERS, prefix, keys.after(prefix))
        for rest, value in fresh:
            self.batch.put(Family.USERS, prefix + rest, value)
        self._owe_summary(user, ends if merged.is_whole else {}, outcome.meta)
        self.taken.add(Taken(users=1, interactions=merged.new, repetitions=merged.repeated))
        self._num_new += not live.meta.length

    def _owe_summary(self, user: bytes, ends: dict[bytes, int], meta: UserMeta) -> None:
        if _is_complete(ends, meta.lifecycle_boundary):
            self.batch.delete(Family.SYSTEM, keys.dirty_key(user))
        else:
            self._mark_dirty(user, meta)

    def _mark_dirty(self, user: bytes, meta: UserMeta) -> None:
        boundary = meta.lifecycle_boundary.to_bytes(8, "big")
        self.batch.put(Family.SYSTEM, keys.dirty_key(user), boundary)


def _head(records: Records) -> bytes:
    """The head is the first record."""
    return records[0][1]


@contextmanager
def _reading_backfill(user: bytes) -> Iterator[None]:
    """Around what decodes backfilled records alone: damage there says nothing of the live user."""
    try:
        yield
    except CorruptValue as error:
        raise DamagedCheckpoint(f"user {user.decode()!r} of the backfill: {error}") from error


def _summary_ends(records: Records) -> dict[bytes, int]:
    """The boundary of each summary, by what follows the user id in its key."""
    return {
        rest: decode_summary(value, "").boundary
        for rest, value in records
        if rest[:1] == keys.SUMMARY
    }


def _is_complete(ends: dict[bytes, int], lifecycle_boundary: int) -> bool:
    """Whether some summary ends at the boundary."""
    return not lifecycle_boundary or lifecycle_boundary in ends.values()


def _history_of(records: Records) -> StoredHistory:
    meta, open_rows = decode_head(_head(records))
    blocks = {
        kind: [decode_rows(value) for rest, value in records if rest[:1] == kind]
        for kind in (keys.CHUNK, keys.TAIL)
    }
    forgotten = [decode_forgotten(value) for rest, value in records if rest == keys.FORGOTTEN]
    return StoredHistory(
        meta,
        join_rows(blocks[keys.CHUNK]),
        join_rows([*blocks[keys.TAIL], open_rows]),
        forgotten[0] if forgotten else NOTHING_FORGOTTEN,
    )


def _holds(rest: bytes, first_position: int) -> bool:
    """Whether a backfilled record is part of what follows: chunks that did not leave, and summaries."""
    kind = rest[:1]
    return kind == keys.SUMMARY or (
        kind == keys.CHUNK and int.from_bytes(rest[1:], "big") >= first_position
    )


def _encode(folded: Fold, history: HistoryConfig) -> Records:
    """Head, tail and freshly sealed chunks."""
    meta, open_rows = folded.meta, folded.tail
    records: Records = []
    if len(folded.tail) > MAX_OPEN:
        meta, open_rows = replace(meta, tail_blocks=1), empty_rows()
        block = encode_rows(folded.tail, with_hashes=True)
        records.append((keys.tail_key(b"", meta.tail_start), block))
    records += [
        (keys.chunk_key(b"", position), encode_rows(rows, with_hashes=False))
        for position, rows in folded.sealed
        if position >= meta.first_position
    ]
    (head,) = encode_heads(make_head(meta, open_rows))
    return [(keys.HEAD, head), *records]
