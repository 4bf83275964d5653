"""The short way of a poll into the store: users whose arrivals are simply newer get one more block, all at once.

Nothing of their tails is read, since nothing newer than a whole history can repeat one of its interactions or come late.
The fold (state/fold.py) takes everybody else, and is the twin that this is tested against.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from state import keys
from state.chunk_codec import encode_records
from state.interaction import INTERACTION, Rows
from state.key_value_store import Batch, Family, KeyValueStore
from state.record_codec import META_FIELDS, decode_metas, encode_metas
from state.segments import HistoryConfig

MAX_TAIL_BLOCKS = 32
"""A tail in more blocks than this is written anew as one, by the fold."""

_FIELD = {name: index for index, name in enumerate(META_FIELDS)}
_OWNER_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class _Grouped:
    """Rows of many users side by side, each user's in offset order."""

    rows: Rows
    owner: npt.NDArray[np.int64]
    """Per row, its user."""
    starts: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    """Per user, where its rows begin and how many they are."""


def append_newer(
    store: KeyValueStore,
    history: HistoryConfig,
    batch: Batch,
    partition: int,
    arrivals: tuple[Sequence[str], Rows],
) -> npt.NDArray[np.int64]:
    """Put the rows of all simple users into `batch`; returns the indices of the rows that are left to the fold.

    `arrivals` are the user of each row, and the rows, in offset order.
    """
    user_ids, rows = arrivals
    codes: dict[str, int] = {}
    users = np.fromiter((codes.setdefault(user, len(codes)) for user in user_ids), np.int64)
    order = np.argsort(users, kind="stable")
    counts = np.bincount(users, minlength=len(codes))
    grouped = _Grouped(rows[order], users[order], np.cumsum(counts) - counts, counts)
    prefixes = [keys.user_prefix(partition, user_id) for user_id in codes]
    metas = decode_metas(store.get(Family.USERS, [prefix + keys.META for prefix in prefixes]))
    simple = _are_simple(grouped, metas, history)
    _put_blocks(batch, prefixes, grouped, metas, np.flatnonzero(simple))
    return np.sort(order[~simple[grouped.owner]])


def _are_simple(
    grouped: _Grouped, metas: npt.NDArray[np.int64], history: HistoryConfig
) -> npt.NDArray[np.bool_]:
    """Per user: all is newer and in order, without repetition, and neither tail nor boundaries reach a limit."""
    old = {name: metas[:, index] for name, index in _FIELD.items()}
    length = old["length"] + grouped.counts
    first_times = grouped.rows["event_time_ms"][grouped.starts]
    simple: npt.NDArray[np.bool_] = (
        (first_times > np.maximum(old["newest_event_time_ms"], old["deleted_until_ms"]))
        & (length - old["tail_start"] < history.seal_len)
        & (length < history.next_move(old["lifecycle_boundary"]))
        & (length < history.next_eviction(old["first_position"]))
        & (old["tail_blocks"] < MAX_TAIL_BLOCKS)
    )
    simple[grouped.owner[_out_of_order(grouped) | _repeated(grouped)]] = False
    return simple


def _out_of_order(grouped: _Grouped) -> npt.NDArray[np.bool_]:
    """Per row: older than the row before it of the same user."""
    times = grouped.rows["event_time_ms"]
    older = np.zeros(len(times), np.bool_)
    older[1:] = (times[1:] < times[:-1]) & (grouped.owner[1:] == grouped.owner[:-1])
    return older


def _repeated(grouped: _Grouped) -> npt.NDArray[np.bool_]:
    """Per row: its user has the same event more than once in this poll."""
    identity = grouped.rows["event_hash"] ^ (grouped.owner.astype(np.uint64) * _OWNER_MIX)
    unique, inverse, counts = np.unique(identity, return_inverse=True, return_counts=True)
    if len(unique) == len(identity):
        return np.zeros(len(identity), np.bool_)
    return np.asarray(counts[inverse] > 1)


def _put_blocks(
    batch: Batch,
    prefixes: list[bytes],
    grouped: _Grouped,
    metas: npt.NDArray[np.int64],
    users: npt.NDArray[np.int64],
) -> None:
    counts = grouped.counts[users]
    ends = grouped.starts[users] + counts
    fields = metas[users]
    positions = fields[:, _FIELD["length"]].tolist()
    fields[:, _FIELD["version"]] += counts
    fields[:, _FIELD["length"]] += counts
    fields[:, _FIELD["newest_event_time_ms"]] = grouped.rows["event_time_ms"][ends - 1]
    fields[:, _FIELD["tail_blocks"]] += 1
    records, size = grouped.rows.tobytes(), INTERACTION.itemsize
    for user, position, count, end, meta in zip(
        users.tolist(), positions, counts.tolist(), ends.tolist(), encode_metas(fields), strict=True
    ):
        block = encode_records(records[(end - count) * size : end * size], count)
        batch.put(Family.USERS, prefixes[user] + keys.META, meta)
        batch.put(Family.USERS, keys.tail_key(prefixes[user], position), block)
