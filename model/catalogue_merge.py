"""A catalogue with some items less and some more: merged into its order instead of sorted anew.

Shapes: N items, S distinct SIDs, M items that are added.
"""

from bisect import bisect_left

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model.catalogue import COLUMN_TYPES, Catalogue

_LARGEST_KEY = 2**63


def merge_catalogues(
    base: Catalogue, without: npt.NDArray[np.uint64], more: Catalogue | None
) -> Catalogue:
    """`base` without the items `without`, where it has them, and with all of `more`.

    The same as a catalogue made of these items; time grows with the size of `base`, but not as a sort does. Raises
    CatalogueError when no item is left, or one is there twice.
    """
    found = base.find(without)
    stays_N = np.ones(len(base), np.bool_)
    stays_N[found[found >= 0]] = False
    order = np.flatnonzero(stays_N)
    if more is None:
        columns = {name: base.columns[name][order] for name in COLUMN_TYPES}
        return Catalogue(columns, base.titles_packed.take(pa.array(order)), in_order=True)
    places_M = np.searchsorted(order, _places(base, more))
    order = np.insert(order, places_M, len(base) + np.arange(len(more)))
    columns = {
        name: np.concatenate([base.columns[name], more.columns[name]])[order]
        for name in COLUMN_TYPES
    }
    titles = pa.concat_arrays([base.titles_packed, more.titles_packed])
    return Catalogue(columns, titles.take(pa.array(order)), in_order=True)


def _places(base: Catalogue, more: Catalogue) -> npt.NDArray[np.int64]:
    """[M]: before which item of `base` each of `more` belongs; ascending, as `more` is in order itself."""
    buckets_M, is_known_M = _buckets(base.sids_SD, more.columns["sids"])
    starts_M = base.bucket_starts[buckets_M]
    places_M = np.where(
        is_known_M, base.bucket_starts[np.minimum(buckets_M + 1, len(base.sids_SD))], starts_M
    )
    last_M = np.maximum(places_M - 1, 0)
    # Most belong behind all of their bucket, as nothing happened to them yet.
    behind_M = (base.counts[last_M] > more.counts) | (
        (base.counts[last_M] == more.counts) & (base.item_ids[last_M] < more.item_ids)
    )
    for m in np.flatnonzero(is_known_M & ~behind_M):
        bucket = range(int(starts_M[m]), int(places_M[m]))
        key = (-int(more.counts[m]), int(more.item_ids[m]))
        places_M[m] = bucket.start + bisect_left(
            bucket, key, key=lambda i: (-int(base.counts[i]), int(base.item_ids[i]))
        )
    return places_M


def _buckets(
    sids_SD: npt.NDArray[np.int64], wanted_MD: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """[M]: the first of the sorted SIDs that is not below each wanted one, and whether it is equal."""
    radices = [
        int(max(sids_SD[:, level].max(), wanted_MD[:, level].max())) + 1
        for level in range(sids_SD.shape[1])
    ]
    if np.prod([float(radix) for radix in radices]) >= _LARGEST_KEY:
        return _buckets_by_tuples(sids_SD, wanted_MD)
    keys_S, keys_M = np.zeros(len(sids_SD), np.int64), np.zeros(len(wanted_MD), np.int64)
    for level, radix in enumerate(radices):
        keys_S = keys_S * radix + sids_SD[:, level]
        keys_M = keys_M * radix + wanted_MD[:, level]
    buckets_M = np.searchsorted(keys_S, keys_M)
    return buckets_M, keys_S[np.minimum(buckets_M, len(keys_S) - 1)] == keys_M


def _buckets_by_tuples(
    sids_SD: npt.NDArray[np.int64], wanted_MD: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The same for codes so large that a SID does not fit into one number."""
    rows = range(len(sids_SD))
    buckets = [
        bisect_left(rows, wanted, key=lambda s: sids_SD[s].tolist())
        for wanted in wanted_MD.tolist()
    ]
    buckets_M = np.array(buckets, np.int64)
    same_MD = sids_SD[np.minimum(buckets_M, len(sids_SD) - 1)] == wanted_MD
    return buckets_M, same_MD.all(1)
