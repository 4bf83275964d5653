"""An event log as serving has it: interactions that the state's fold refuses as duplicates are left out."""

from functools import partial

import numpy as np
import numpy.typing as npt

from state.event_log import EventLog
from state.fold import fold
from state.interaction import Rows, empty_rows, hash_events, join_rows
from state.segments import HistoryConfig
from state.user_state import UserMeta

_AT_ONCE = 1_024


def replay(events: EventLog, history: HistoryConfig) -> EventLog:
    """The interactions of `events` that become part of a history.

    The log is in event-time order, so nothing comes late, and a history at any moment is the beginning of the whole
    one. Then only users with an event twice, or with more interactions at one time than the recent segment holds, can
    differ from their rows; these are folded.
    """
    hashes = events.rows["event_hash"]
    if not hashes.all():
        hashes = hash_events(events.event_ids, events.rows["event_time_ms"])
    order = np.argsort(events.user_index, kind="stable")
    rows, users = events.rows[order], events.user_index[order]
    rows["event_hash"] = hashes[order]
    suspects = np.unique(users[_suspicious(rows, users, history.recent_len)])
    refused = [
        start + np.flatnonzero(~_applied(rows[start:end], history))
        for start, end in zip(
            np.searchsorted(users, suspects),
            np.searchsorted(users, suspects, side="right"),
            strict=True,
        )
    ]
    kept = np.ones(len(rows), np.bool_)
    kept[order[np.concatenate([np.empty(0, np.int64), *refused])]] = False
    if kept.all():
        return events
    places = np.flatnonzero(kept)
    return EventLog(
        events.user_ids,
        events.user_index[places],
        [events.event_ids[i] for i in places],
        events.rows[places],
    )


def _suspicious(rows: Rows, users: npt.NDArray[np.int64], recent_len: int) -> npt.NDArray[np.bool_]:
    """Repetitions of a user's event hash, and ends of long runs of one event time."""
    by_hash = np.lexsort((rows["event_hash"], users))
    same = (rows["event_hash"][by_hash][1:] == rows["event_hash"][by_hash][:-1]) & (
        users[by_hash][1:] == users[by_hash][:-1]
    )
    mask = np.zeros(len(rows), np.bool_)
    mask[by_hash[1:][same]] = True
    times = rows["event_time_ms"]
    mask[recent_len:] |= (times[recent_len:] == times[:-recent_len]) & (
        users[recent_len:] == users[:-recent_len]
    )
    return mask


def _applied(rows: Rows, history: HistoryConfig) -> npt.NDArray[np.bool_]:
    """Mask of one user's interactions that the fold applies: where a part is not applied whole, its halves tell."""
    meta, tail, chunks = UserMeta(), empty_rows(), list[tuple[int, Rows]]()
    applied = np.zeros(len(rows), np.bool_)
    parts = [(start, min(start + _AT_ONCE, len(rows))) for start in range(0, len(rows), _AT_ONCE)]
    parts.reverse()
    while parts:
        start, end = parts.pop()
        step = fold(meta, tail, rows[start:end], history, partial(_stored, chunks, meta))
        if 0 < step.applied < end - start:
            middle = (start + end) // 2
            parts += [(middle, end), (start, middle)]
            continue
        applied[start:end] = step.applied > 0
        meta, tail = step.meta, step.tail
        chunks += step.sealed
    return applied


def _stored(chunks: list[tuple[int, Rows]], meta: UserMeta) -> Rows:
    kept = [rows for position, rows in chunks if position >= meta.first_position]
    return join_rows([empty_rows(), *kept])
