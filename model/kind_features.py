"""What a history says of the kinds of its items: how much of a tag or an author it holds, and how lately.

Shapes: N items, K distinct kinds, F features.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from state.item_statistics import DAY_MS, HALF_LIVES_DAYS, Records, decayed_counts

NUM_KIND_FEATURES = len(HALF_LIVES_DAYS) + 5
_SMALLEST_COUNT = 0.01


def kind_features(
    history: Records, items: Records, kinds: npt.NDArray[np.integer[Any]]
) -> npt.NDArray[np.float32]:
    """[N, F], as of the history's newest interaction; `kinds` are the items' own, 0 is "not known".

    Logarithms of: decayed counts of all items of the kind; days and visits since the last of them; how many of them there
    are, how many came after the item; the item's share of the kind's longest count. Of an unknown kind there is nothing.
    """
    now_ms, num_visits = history["last_time_ms"][0], history["visits"][0]
    counts = decayed_counts(items, np.full(len(items), now_ms))
    distinct, kind = np.unique(kinds, return_inverse=True)
    had = (items["last_visit"] > 0) & (kinds != 0)
    totals_KH = np.stack(
        [np.bincount(kind[had], column[had], len(distinct)) for column in counts.T], 1
    )
    last_ms_K = np.full(len(distinct), history["first_time_ms"][0])
    np.maximum.at(last_ms_K, kind[had], items["last_time_ms"][had])
    last_visit_K = np.zeros(len(distinct), np.int64)
    np.maximum.at(last_visit_K, kind[had], items["last_visit"][had])
    columns = [
        *np.log(totals_KH[kind] + _SMALLEST_COUNT).T,
        np.log1p((now_ms - last_ms_K[kind]) / DAY_MS),
        np.log1p(num_visits - last_visit_K[kind]),
        np.log1p(np.bincount(kind[had], minlength=len(distinct))[kind]),
        np.log1p(_num_later(items, kind, had)),
        np.log(
            (counts[:, -1] * had + _SMALLEST_COUNT) / (totals_KH[kind, -1] + 2 * _SMALLEST_COUNT)
        ),
    ]
    return np.stack(columns, 1).astype(np.float32)


def _num_later(
    items: Records, kind: npt.NDArray[np.intp], had: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int64]:
    """[N]: items of the same kind that came in a later visit; 0 for those that did not come."""
    place = np.flatnonzero(had)
    step = int(items["last_visit"].max(initial=0)) + 1
    keys = kind[place] * step + items["last_visit"][place]
    ordered = np.sort(keys)
    ends = np.searchsorted(ordered, (kind[place] + 1) * step)
    later = np.zeros(len(items), np.int64)
    later[place] = ends - np.searchsorted(ordered, keys, "right")
    return later
