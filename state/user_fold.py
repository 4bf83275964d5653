"""One user's fold over a poll: interactions and deletions, one after the other in the order of the log."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from state.arrivals import Deletion
from state.fold import Fold, fold, in_event_time_order
from state.forgotten_items import NOTHING_FORGOTTEN, ForgottenItems
from state.interaction import Rows, empty_rows, join_rows
from state.segments import HistoryConfig
from state.user_state import UserMeta


class UserFold:
    """Gives the same state however the log is cut into polls."""

    def __init__(
        self,
        meta: UserMeta,
        tail: Rows,
        history: HistoryConfig,
        read_sealed: Callable[[], Rows] = empty_rows,
        forgotten: ForgottenItems = NOTHING_FORGOTTEN,
    ) -> None:
        """`read_sealed` is the fold's: called at most once, and only when it is needed."""
        self.outcome = Fold(meta, tail)
        """All steps so far as one fold, without its counts but `applied`."""
        self.rewritten = False
        """Nothing that was stored of the user holds any more: `outcome` and `forgotten` are all there is."""
        self.forgotten = self._forgotten_before = forgotten
        self._history = history
        self._read_stored = read_sealed
        self._stored: Rows | None = None
        """Every sealed interaction from `_first_stored` on, of the first `_num_joined` chunks in `outcome`, too."""
        self._first_stored = meta.first_position
        self._num_joined = 0

    @property
    def changed(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.outcome.applied) or self.rewritten or self._asked_anew

    @property
    def forgotten_to_write(self) -> ForgottenItems | None:
        """The list of forgotten items, where the stored one does not hold."""
        written = self.rewritten or self._asked_anew
        return self.forgotten if written and len(self.forgotten.entries) else None

    def add(self, arrivals: Rows) -> Fold:
        """Fold interactions; returns what became of these."""
        sofar, chunk_len = self.outcome, self._history.chunk_len
        step = fold(sofar.meta, sofar.tail, arrivals, self._history, self._sealed, self.forgotten)
        sofar.meta, sofar.tail = step.meta, step.tail
        sofar.sealed += step.sealed
        sofar.evicted = range(self._first_stored, step.meta.first_position, chunk_len)
        sofar.boundary_moved |= step.boundary_moved
        sofar.applied += step.applied
        return step

    def delete(self, deletion: Deletion) -> int:
        """Apply a deletion; returns how many interactions a forgotten item takes with it."""
        if deletion.item_id:
            return self._forget(deletion)
        meta = self.outcome.meta
        until_ms = max(meta.deleted_until_ms, deletion.until_ms)
        self.forgotten = NOTHING_FORGOTTEN
        self._rewrite(UserMeta(epoch=meta.epoch + 1, deleted_until_ms=until_ms), empty_rows())
        return 0

    def _forget(self, deletion: Deletion) -> int:
        if deletion.until_ms <= self.outcome.meta.deleted_until_ms:
            return 0  # all of that past is deleted, and refused
        self.forgotten = self.forgotten.having(deletion.item_id, deletion.until_ms)
        meta = replace(self.outcome.meta, forgotten_until_ms=self.forgotten.until_ms)
        self.outcome.meta = meta
        stored = (self._sealed(), self.outcome.tail)
        gone = [_taken(rows, deletion) for rows in stored]
        num_gone = sum(int(np.count_nonzero(mask)) for mask in gone)
        # Chunks that left the history may have held the item, too, and a summary remembers them.
        if num_gone or meta.first_position:
            meta = replace(meta, version=meta.version + 1, epoch=meta.epoch + 1)
            kept = [rows[~mask] for rows, mask in zip(stored, gone, strict=True)]
            self._rewrite(meta, join_rows(kept))
        return num_gone

    @property
    def _asked_anew(self) -> bool:
        return self.forgotten is not self._forgotten_before

    def _sealed(self) -> Rows:
        """Every sealed interaction that is still part of the history."""
        if self._stored is None:
            self._stored = self._read_stored()
        if fresh := [rows for _, rows in self.outcome.sealed[self._num_joined :]]:
            self._stored = join_rows([self._stored, *fresh])
            self._num_joined = len(self.outcome.sealed)
        return self._stored[self.outcome.meta.first_position - self._first_stored :]

    def _rewrite(self, meta: UserMeta, rows: Rows) -> None:
        applied = self.outcome.applied
        self.outcome = cut_anew(meta, rows, self._history)
        self.outcome.applied = applied
        self.rewritten = True
        self._stored, self._first_stored, self._num_joined = empty_rows(), 0, 0


def _taken(rows: Rows, deletion: Deletion) -> npt.NDArray[np.bool_]:
    """Mask of the interactions that a forgotten item takes with it."""
    mask: npt.NDArray[np.bool_] = (rows["item_id"] == deletion.item_id) & (
        rows["event_time_ms"] <= deletion.until_ms
    )
    return mask


def cut_anew(meta: UserMeta, rows: Rows, history: HistoryConfig) -> Fold:
    """A history of these interactions alone, in event-time order and cut as the fold would have cut it.

    `meta` gives what does not follow from them: version, epoch, and what is refused.
    """
    rows = in_event_time_order(rows).copy()
    length = len(rows)
    tail_start = history.tail_start(length)
    boundary = history.lifecycle_boundary(length)
    rows["event_hash"][:tail_start] = 0
    times = rows["event_time_ms"]
    meta = replace(
        meta,
        length=length,
        first_position=0,
        lifecycle_boundary=boundary,
        tail_start=tail_start,
        newest_event_time_ms=int(times[-1]) if length else 0,
        sealed_event_time_ms=int(times[tail_start - 1]) if tail_start else 0,
    )
    starts = range(0, tail_start, history.chunk_len)
    sealed = [(start, rows[start : start + history.chunk_len]) for start in starts]
    return Fold(meta, rows[tail_start:], sealed, boundary_moved=boundary > 0)
