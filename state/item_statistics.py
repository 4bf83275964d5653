"""What a history says of each of its items, as sums over event time: they roll, merge and are rebuilt exactly.

A decayed count is kept as of its item's last interaction: c(t) = c(last) 2^-((t - last) / half-life). A visit is a run
of interactions with no more than VISIT_GAP_MS between neighbours: a basket, a session, the replays of one clip. Phases
say at which hours of the day and of the week interactions lie: the mean direction of their times on circles of some periods.

A DISLIKE is no interaction here: it is counted nowhere, and names its item as disliked until the item comes again.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from state.interaction import Rows, are_dislikes

DAY_MS = 86_400_000
HALF_LIVES_DAYS = (7, 21, 56, 168)
VISIT_GAP_MS = 3_600_000
PERIODS_MS = (DAY_MS, DAY_MS // 2, DAY_MS // 3, 7 * DAY_MS, 7 * DAY_MS // 2)
SLOT_MS = 900_000
"""Phases know times no finer; it divides all periods."""
PHASE_UNIT = 128
"""The radius of the circles: sums of whole numbers are exact in any order."""

STATISTICS = np.dtype(
    [
        ("item_id", "<u8"),
        ("first_time_ms", "<i8"),
        ("last_time_ms", "<i8"),
        ("count", "<u4"),  # interactions
        ("visits", "<u4"),
        ("last_visit", "<u4"),  # number, from 1, of the history's visit in which the item came last
        ("decayed", "<f8", (len(HALF_LIVES_DAYS),)),  # counts as of last_time_ms, one per half-life
        ("phases", "<i4", (2 * len(PERIODS_MS),)),  # sum of `phases_at` over the interactions
    ]
)

DISLIKES = np.dtype([("item_id", "<u8"), ("time_ms", "<i8")])

Records: TypeAlias = npt.NDArray[np.void]
"""A one-dimensional array of dtype STATISTICS."""

Dislikes: TypeAlias = npt.NDArray[np.void]
"""A one-dimensional array of dtype DISLIKES."""

_HALF_LIVES_MS = np.array(HALF_LIVES_DAYS, np.float64) * DAY_MS
_WHOLE_HISTORY = np.uint64(0)
_SLOTS_OF_WEEK = np.arange(0, 7 * DAY_MS, SLOT_MS)
_ANGLES = 2 * np.pi * _SLOTS_OF_WEEK[:, None] / np.array(PERIODS_MS)
_PHASES = np.rint(PHASE_UNIT * np.concatenate([np.cos(_ANGLES), np.sin(_ANGLES)], 1)).astype("<i4")


@dataclass(frozen=True)
class ItemStatistics:
    """Statistics of one stretch of a history."""

    history: Records
    """[1]: all interactions together, with item id 0; [0] of an empty stretch. Never dropped by a bound."""
    items: Records
    """One per distinct item, ids ascending."""
    disliked: Dislikes
    """One per item whose newest interaction is a DISLIKE, with its time, ids ascending; at one time, the DISLIKE is newer."""


def phases_at(times_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """[N, 2 P]: where times lie on the circle of each period, in PHASE_UNIT; all cosines, then all sines."""
    slots = times_ms // SLOT_MS % len(_PHASES)
    return np.asarray(_PHASES[slots])


def empty_statistics() -> ItemStatistics:
    """Of no interactions."""
    return ItemStatistics(np.empty(0, STATISTICS), np.empty(0, STATISTICS), np.empty(0, DISLIKES))


def statistics_of(rows: Rows) -> ItemStatistics:
    """From interactions in any order; equal to merging those of any split of the same rows in event-time order."""
    refused = are_dislikes(rows)
    if not refused.any():
        return _counted(rows)
    counted, dislikes = _counted(rows[~refused]), np.empty(int(refused.sum()), DISLIKES)
    dislikes["item_id"] = rows["item_id"][refused]
    dislikes["time_ms"] = rows["event_time_ms"][refused]
    return replace(counted, disliked=_newest(dislikes, counted.items))


def _counted(rows: Rows) -> ItemStatistics:
    if not len(rows):
        return empty_statistics()
    by_time = np.argsort(rows["event_time_ms"], kind="stable")
    ids, times = rows["item_id"][by_time], rows["event_time_ms"][by_time]
    visit = np.cumsum(np.diff(times, prepend=times[0]) > VISIT_GAP_MS) + 1
    by_item = np.argsort(ids, kind="stable")
    return ItemStatistics(
        _grouped(np.full_like(ids, _WHOLE_HISTORY), times, visit),
        _grouped(ids[by_item], times[by_item], visit[by_item]),
        np.empty(0, DISLIKES),
    )


def _newest(dislikes: Dislikes, items: Records) -> Dislikes:
    """The last of each item, where the item did not come later: nothing that may follow brings an older one back."""
    order = np.lexsort((dislikes["time_ms"], dislikes["item_id"]))
    ids = dislikes["item_id"][order]
    last = dislikes[order[np.append(ids[1:] != ids[:-1], True)]] if len(ids) else dislikes
    _, where, in_items = np.intersect1d(
        last["item_id"], items["item_id"], assume_unique=True, return_indices=True
    )
    outdated = items["last_time_ms"][in_items] > last["time_ms"][where]
    return np.delete(last, where[outdated])


def _grouped(
    ids: npt.NDArray[np.uint64], times: npt.NDArray[np.int64], visit: npt.NDArray[np.int64]
) -> Records:
    """One record per run of equal ids; times ascend within a run."""
    new_item = np.append(True, ids[1:] != ids[:-1])
    starts = np.flatnonzero(new_item)
    counts = np.diff(np.append(starts, len(ids)))
    last = starts + counts - 1
    new_visit = new_item | np.append(True, np.diff(times) > VISIT_GAP_MS)
    age_ms = np.repeat(times[last], counts) - times
    records = np.empty(len(starts), STATISTICS)
    records["item_id"] = ids[starts]
    records["first_time_ms"] = times[starts]
    records["last_time_ms"] = times[last]
    records["count"] = counts
    records["visits"] = np.add.reduceat(new_visit.astype(np.uint32), starts)
    records["last_visit"] = visit[last]
    records["decayed"] = np.add.reduceat(np.exp2(-age_ms[:, None] / _HALF_LIVES_MS), starts)
    records["phases"] = np.add.reduceat(phases_at(times), starts)
    return records


def merge_statistics(older: ItemStatistics, newer: ItemStatistics) -> ItemStatistics:
    """Of a stretch and the one that follows it.

    Where event times of the two overlap (a late interaction, stored at the oldest open place), a visit may be counted
    once too often or too rarely; everything else stays exact.
    """
    merged = _merged_counts(older, newer)
    if not (len(older.disliked) or len(newer.disliked)):
        return merged
    dislikes = np.concatenate([older.disliked, newer.disliked])
    return replace(merged, disliked=_newest(dislikes, merged.items))


def _merged_counts(older: ItemStatistics, newer: ItemStatistics) -> ItemStatistics:
    if not len(older.history):
        return newer
    if not len(newer.history):
        return older
    history = _merged_pairs(older.history, newer.history)
    shift = int(history["visits"][0]) - int(newer.history["visits"][0])
    moved = newer.items.copy()
    moved["last_visit"] += np.uint32(shift)
    history["last_visit"] = history["visits"]
    return ItemStatistics(history, _merged_items(older.items, moved), newer.disliked)


def _merged_items(older: Records, newer: Records) -> Records:
    _, in_older, in_newer = np.intersect1d(
        older["item_id"], newer["item_id"], assume_unique=True, return_indices=True
    )
    both = _merged_pairs(older[in_older], newer[in_newer])
    apart = (np.delete(older, in_older), np.delete(newer, in_newer))
    joined = np.frombuffer(b"".join([part.tobytes() for part in (both, *apart)]), STATISTICS)
    return joined[np.argsort(joined["item_id"])]


def _merged_pairs(older: Records, newer: Records) -> Records:
    """Record by record of the same items."""
    merged = newer.copy()
    last = np.maximum(older["last_time_ms"], newer["last_time_ms"])
    joined = newer["first_time_ms"] - older["last_time_ms"] <= VISIT_GAP_MS
    merged["first_time_ms"] = np.minimum(older["first_time_ms"], newer["first_time_ms"])
    merged["last_time_ms"] = last
    merged["count"] += older["count"]
    merged["visits"] += older["visits"] - joined.astype(np.uint32)
    merged["last_visit"] = np.maximum(older["last_visit"], newer["last_visit"])
    merged["decayed"] = decayed_counts(older, last) + decayed_counts(newer, last)
    merged["phases"] += older["phases"]
    return merged


def decayed_counts(
    records: Records, time_ms: int | npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """[N, half-lives]: the decayed counts as of a time, in ms since the epoch."""
    age_ms = np.subtract(time_ms, records["last_time_ms"])
    return np.asarray(records["decayed"] * np.exp2(-age_ms[:, None] / _HALF_LIVES_MS))


def strongest(items: Records, max_items: int) -> Records:
    """The `max_items` with the largest count under the longest half-life, ids ascending; ties to the smaller id.

    All counts of one half-life fade alike, so the order of two items stays until one of them comes again.
    """
    if len(items) <= max_items:
        return items
    log_strength = np.log2(items["decayed"][:, -1]) + items["last_time_ms"] / _HALF_LIVES_MS[-1]
    kept = np.lexsort((items["item_id"], -log_strength))[:max_items]
    return items[np.sort(kept)]


def bounded(statistics: ItemStatistics, max_items: int) -> ItemStatistics:
    """The strongest items and the newest dislikes alone; one that is dropped and comes again begins anew.

    Where a dislike is dropped, its item goes, too: it must not be taken for one that is liked.
    """
    items, disliked = statistics.items, statistics.disliked
    if len(disliked) > max_items:
        order = np.lexsort((disliked["item_id"], -disliked["time_ms"]))
        dropped = disliked["item_id"][order[max_items:]]
        items = items[~np.isin(items["item_id"], dropped)]
        disliked = disliked[np.sort(order[:max_items])]
    return ItemStatistics(statistics.history, strongest(items, max_items), disliked)
