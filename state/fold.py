"""The pure fold: a user's old state and new interactions give the new state and what moved."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from state.forgotten_items import NOTHING_FORGOTTEN, ForgottenItems
from state.interaction import Rows, empty_rows, hash_features, join_rows
from state.segments import HistoryConfig
from state.user_state import UserMeta

_JUDGED_AT_ONCE = 4
"""Arrivals looked at per round, in multiples of the seal length; bounds the work when most are duplicates."""


@dataclass
class Fold:
    """The outcome of a fold. `sealed` holds (first position, rows) of the chunks that left the tail."""

    meta: UserMeta
    tail: Rows
    sealed: list[tuple[int, Rows]] = field(default_factory=list)
    evicted: range = range(0)
    """First positions of the chunks that fell out of the history."""
    boundary_moved: bool = False
    applied: int = 0
    duplicates: int = 0
    late: int = 0
    refused: int = 0


def fold(
    meta: UserMeta,
    tail: Rows,
    arrivals: Rows,
    history: HistoryConfig,
    read_sealed: Callable[[], Rows] = empty_rows,
    forgotten: ForgottenItems = NOTHING_FORGOTTEN,
) -> Fold:
    """Add `arrivals` (in offset order) to a user's history.

    The outcome is the same as folding them one by one, whatever the split: a chunk is sealed at the very arrival that
    fills the tail. Ties in event time keep offset order. An event hash already in the tail is a duplicate; so is what
    may lie among the sealed interactions, by its event time, and equals one of them in every feature, or equals one in
    the tail that came back from a chunk without its hash. `read_sealed` gives the interactions from
    `meta.first_position` to `meta.tail_start`; it is called at most once, and only when there is such an arrival.
    What `forgotten` or a deletion refuses is counted only.
    """
    result = Fold(meta, tail)
    alive = arrivals["event_time_ms"] > meta.deleted_until_ms
    if forgotten is not NOTHING_FORGOTTEN:
        alive &= ~forgotten.refuse(arrivals)
    result.refused = int(np.count_nonzero(~alive))
    arrivals = arrivals[alive]
    sealed = _SealedFeatures(result, history, arrivals, read_sealed)
    start = 0
    while start < len(arrivals):
        judged = slice(start, start + _JUDGED_AT_ONCE * history.seal_len)
        start += _take_until_seal(result, arrivals[judged], sealed.contain(judged), history)
        if len(result.tail) >= history.seal_len:
            _seal(result, history)
    _move_boundaries(result, history)
    return result


def replay(meta: UserMeta, tail: Rows, accepted: Rows, history: HistoryConfig) -> Fold:
    """Add interactions that a fold accepted before, in the order given: none is judged, late or a duplicate."""
    result = Fold(meta, tail)
    while len(accepted):
        room = history.seal_len - len(result.tail)
        result.tail = in_event_time_order(join_rows([result.tail, accepted[:room]]))
        result.applied += len(accepted[:room])
        accepted = accepted[room:]
        if len(result.tail) >= history.seal_len:
            _seal(result, history)
    _move_boundaries(result, history)
    return result


class _SealedFeatures:
    """Which arrivals equal a sealed interaction in every feature; reads the sealed chunks when first asked."""

    def __init__(
        self,
        result: Fold,
        history: HistoryConfig,
        arrivals: Rows,
        read_sealed: Callable[[], Rows],
    ) -> None:
        self._result = result
        self._history = history
        self._arrivals = arrivals
        self._first_position = result.meta.first_position
        self._read_sealed = read_sealed
        self._looked_up: tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]] | None = None
        self._fresh: list[npt.NDArray[np.uint64]] = []
        """Hashes of the chunks that this fold sealed."""

    def contain(self, judged: slice) -> npt.NDArray[np.bool_]:
        """Mask of those that do, as far as the sealed interaction is still stored when the next chunk is sealed.

        Looking no further keeps the answer free of when the oldest chunks leave, and so of how the log is split.
        """
        meta, sealed = self._result.meta, self._result.sealed
        mask: npt.NDArray[np.bool_] = (
            self._arrivals["event_time_ms"][judged] <= meta.sealed_event_time_ms
        )
        if mask.any():
            hashes, positions = self._look_up()
            self._fresh += [hash_features(rows) for _, rows in sealed[len(self._fresh) :]]
            stays = self._history.first_position(meta.tail_start + self._history.seal_len)
            kept = [
                fresh
                for fresh, (position, _) in zip(self._fresh, sealed, strict=True)
                if position >= stays
            ]
            found = positions[judged][mask] >= stays
            if kept:
                found |= np.isin(hashes[judged][mask], np.concatenate(kept))
            mask[mask] = found
        return mask

    def _look_up(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Per arrival its hash, and the newest position before this fold that equals it, or -1; once for all of them."""
        if self._looked_up is None:
            hashes = hash_features(self._arrivals)
            positions = _newest_equal(hashes, hash_features(self._read_sealed()))
            positions[positions >= 0] += self._first_position
            self._looked_up = hashes, positions
        return self._looked_up


def _newest_equal(
    wanted: npt.NDArray[np.uint64], stored: npt.NDArray[np.uint64]
) -> npt.NDArray[np.int64]:
    """Per wanted hash, the last index in `stored` that equals it, or -1."""
    order = np.argsort(stored, kind="stable")
    at = np.searchsorted(stored[order], wanted, side="right") - 1
    found = at >= 0
    found[found] = stored[order[at[found]]] == wanted[found]
    return np.where(found, order[at] if len(order) else -1, -1)


def _take_until_seal(
    result: Fold, arrivals: Rows, known: npt.NDArray[np.bool_], history: HistoryConfig
) -> int:
    """Put arrivals into the tail until it is full or they end; returns how many were dealt with.

    `known` marks those that are duplicates of a sealed interaction.
    """
    room = history.seal_len - len(result.tail)
    if not result.tail["event_hash"].all():
        known = known | _equal_unhashed(arrivals, result.tail)
    late = (arrivals["event_time_ms"] < result.meta.sealed_event_time_ms) & ~known
    wanted = ~known & ~late if history.late == "drop" else ~known
    new = wanted.copy()
    new[wanted] = _first_seen(arrivals["event_hash"][wanted], result.tail["event_hash"])
    chosen = np.flatnonzero(new)[:room]
    num_taken = int(chosen[-1]) + 1 if len(chosen) == room else len(arrivals)

    result.applied += len(chosen)
    result.duplicates += int(np.count_nonzero((known | (wanted & ~new))[:num_taken]))
    counted_late = late & new if history.late == "store" else late
    result.late += int(np.count_nonzero(counted_late[:num_taken]))
    if len(chosen):
        result.tail = in_event_time_order(join_rows([result.tail, arrivals[chosen]]))
    return num_taken


def _equal_unhashed(arrivals: Rows, tail: Rows) -> npt.NDArray[np.bool_]:
    """Mask of those that equal, in every feature, an interaction of the tail without a hash."""
    return np.isin(hash_features(arrivals), hash_features(tail[tail["event_hash"] == 0]))


def _first_seen(
    hashes: npt.NDArray[np.uint64], known: npt.NDArray[np.uint64]
) -> npt.NDArray[np.bool_]:
    """Mask of hashes that are neither known nor repeated earlier in `hashes`."""
    first = np.zeros(len(hashes), np.bool_)
    first[np.unique(hashes, return_index=True)[1]] = True
    return first & ~np.isin(hashes, known)


def in_event_time_order(rows: Rows) -> Rows:
    """Rows by event time; ties keep their order."""
    times = rows["event_time_ms"]
    if np.all(times[1:] >= times[:-1]):
        return rows
    return rows[np.argsort(times, kind="stable")]


def _seal(result: Fold, history: HistoryConfig) -> None:
    chunk = result.tail[: history.chunk_len].copy()
    chunk["event_hash"] = 0
    start = result.meta.tail_start
    newest_ms = int(chunk["event_time_ms"].max())
    result.sealed.append((start, chunk))
    result.tail = result.tail[history.chunk_len :]
    result.meta = replace(
        result.meta,
        tail_start=start + history.chunk_len,
        sealed_event_time_ms=max(result.meta.sealed_event_time_ms, newest_ms),
    )


def _move_boundaries(result: Fold, history: HistoryConfig) -> None:
    if not result.applied:
        return
    old = result.meta
    length = old.tail_start + len(result.tail)
    first_position = history.first_position(length)
    boundary = history.lifecycle_boundary(length)
    newest_ms = max((int(rows["event_time_ms"].max()) for _, rows in result.sealed), default=0)
    result.meta = replace(
        old,
        version=old.version + result.applied,
        length=length,
        first_position=first_position,
        lifecycle_boundary=boundary,
        newest_event_time_ms=max(
            old.newest_event_time_ms, newest_ms, int(result.tail["event_time_ms"][-1])
        ),
    )
    result.evicted = range(old.first_position, first_position, history.chunk_len)
    result.boundary_moved = boundary != old.lifecycle_boundary
