"""The short way of a poll into the store: users whose arrivals are simply newer get them appended, all at once.

Nothing of their tails is read, since nothing newer than a whole history can repeat one of its interactions or come late.
The fold (state/fold.py) takes everybody else, and is the twin that this is tested against.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from state import keys
from state.chunk_codec import encode_records
from state.head_codec import MAX_OPEN, encode_heads
from state.head_table import HeadTable
from state.interaction import INTERACTION, Rows
from state.key_value_store import Batch, Family
from state.segments import HistoryConfig

MAX_TAIL_BLOCKS = 32
"""A tail in more blocks than this is written anew as one, by the fold."""

_INDEX_BITS = 24
_OWNER_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class _Grouped:
    """Rows of many users side by side, each user's in offset order; `slots`, `starts` and `counts` are per user."""

    rows: Rows
    order: npt.NDArray[np.int64]
    """Per row, where it came from."""
    owner: npt.NDArray[np.int64]
    """Per row, its user."""
    slots: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]


def append_newer(
    table: HeadTable, history: HistoryConfig, batch: Batch, slots: npt.NDArray[np.int64], rows: Rows
) -> npt.NDArray[np.int64]:
    """Put the rows of all simple users into `table` and `batch`; returns the indices of the rows left to the fold.

    `slots` tells the user of each row; rows are in offset order, at least one and fewer than 2**24.
    """
    grouped = _group(slots, rows)
    simple = _are_simple(grouped, table, history)
    chosen = np.flatnonzero(simple)
    total = table.heads["num_open"][grouped.slots[chosen]] + grouped.counts[chosen]
    _open(table, grouped, chosen[total <= MAX_OPEN])
    _close_blocks(table, grouped, chosen[total > MAX_OPEN], batch)
    _move_meta(table, grouped, chosen)
    written = grouped.slots[chosen]
    head_keys = [table.key(slot) for slot in written.tolist()]
    batch.put_many(Family.USERS, head_keys, encode_heads(table.heads[written]))
    return np.sort(grouped.order[~simple[grouped.owner]])


def _group(slots: npt.NDArray[np.int64], rows: Rows) -> _Grouped:
    # Sorting numbers is several times faster than a stable argsort; the index in the low bits keeps offset order.
    tagged = np.sort(slots << _INDEX_BITS | np.arange(len(slots)))
    order = tagged & ((1 << _INDEX_BITS) - 1)
    of_row = tagged >> _INDEX_BITS
    starts = np.flatnonzero(np.diff(of_row, prepend=-1))
    counts = np.diff(starts, append=len(rows))
    owner = np.repeat(np.arange(len(starts)), counts)
    return _Grouped(rows[order], order, owner, of_row[starts], starts, counts)


def _are_simple(
    grouped: _Grouped, table: HeadTable, history: HistoryConfig
) -> npt.NDArray[np.bool_]:
    """Per user: all is newer and in order, without repetition, and neither tail nor boundaries reach a limit."""
    old = table.heads["meta"][grouped.slots]
    length = old["length"] + grouped.counts
    first_times = grouped.rows["event_time_ms"][grouped.starts]
    simple: npt.NDArray[np.bool_] = (
        (first_times > np.maximum(old["newest_event_time_ms"], old["deleted_until_ms"]))
        & (first_times > old["forgotten_until_ms"])
        & (length - old["tail_start"] < history.seal_len)
        & (length < history.next_move(old["lifecycle_boundary"]))
        & (length < history.next_eviction(old["first_position"]))
        & (old["tail_blocks"] < MAX_TAIL_BLOCKS)
    )
    simple[grouped.owner[_out_of_order(grouped)]] = False
    simple[grouped.owner[_repeated(grouped)]] = False
    return simple


def _out_of_order(grouped: _Grouped) -> npt.NDArray[np.int64]:
    """Rows that are older than the row before of the same user."""
    times = grouped.rows["event_time_ms"]
    older = (times[1:] < times[:-1]) & (grouped.owner[1:] == grouped.owner[:-1])
    return np.flatnonzero(older) + 1


def _repeated(grouped: _Grouped) -> npt.NDArray[np.int64]:
    """Rows whose user has the same event more than once in this poll."""
    identity = grouped.rows["event_hash"] ^ (grouped.owner.astype(np.uint64) * _OWNER_MIX)
    ascending = np.sort(identity)
    twice = ascending[1:] == ascending[:-1]
    if not twice.any():
        return np.empty(0, np.int64)
    return np.flatnonzero(np.isin(identity, ascending[1:][twice]))


def _open(table: HeadTable, grouped: _Grouped, users: npt.NDArray[np.int64]) -> None:
    """Add the rows of `users` to the open ones of their heads, where there is room."""
    counts, slots = grouped.counts[users], grouped.slots[users]
    nth = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = np.repeat(grouped.starts[users], counts) + nth
    first = table.heads["num_open"][slots].astype(np.int64)
    table.heads["open"][np.repeat(slots, counts), np.repeat(first, counts) + nth] = grouped.rows[
        rows
    ]
    table.heads["num_open"][slots] = first + counts


def _close_blocks(
    table: HeadTable, grouped: _Grouped, users: npt.NDArray[np.int64], batch: Batch
) -> None:
    """The open rows of each of `users` and its new ones become a block of the tail."""
    slots = grouped.slots[users]
    heads, size = table.heads[slots], INTERACTION.itemsize
    num_open = heads["num_open"].astype(np.int64)
    old_records, new_records = heads["open"].tobytes(), grouped.rows.tobytes()
    for nth, (slot, user, count, position) in enumerate(
        zip(
            slots.tolist(),
            users.tolist(),
            num_open.tolist(),
            (heads["meta"]["length"] - num_open).tolist(),
            strict=True,
        )
    ):
        old, new = nth * MAX_OPEN * size, int(grouped.starts[user]) * size
        block = encode_records(
            old_records[old : old + count * size]
            + new_records[new : new + int(grouped.counts[user]) * size]
        )
        prefix = table.key(slot)[: -len(keys.HEAD)]
        batch.put(Family.USERS, keys.tail_key(prefix, position), block)
    table.heads["num_open"][slots] = 0
    table.heads["meta"]["tail_blocks"][slots] += 1


def _move_meta(table: HeadTable, grouped: _Grouped, users: npt.NDArray[np.int64]) -> None:
    slots, counts = grouped.slots[users], grouped.counts[users]
    last = grouped.starts[users] + counts - 1
    table.heads["meta"]["version"][slots] += counts
    table.heads["meta"]["length"][slots] += counts
    table.heads["meta"]["newest_event_time_ms"][slots] = grouped.rows["event_time_ms"][last]
