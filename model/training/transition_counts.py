"""Counts what came soon after each item in the histories that train: n(i, j) of model/transitions.py.

    n(i, j) = sum over targets j up to ten interactions, d = 0, 1, ..., behind one with i, of .8^d; half of that before it

What lies before counts, since the order of things is often chance. Of each item, the strongest 64 stay.
"""

import itertools

import numpy as np
import numpy.typing as npt

from model.catalogue import Catalogue
from model.training.histories import Histories, Index
from model.transitions import Transitions

Floats = npt.NDArray[np.float64]

_WINDOW = 10
_FADE = 0.8
_BEFORE = 0.5
_MAX_FOLLOWERS = 64
_MAX_PAIRS = 1 << 25
"""Counted at a time: one and a half gigabytes while they are sorted."""


def count_transitions(histories: Histories, catalogue: Catalogue) -> Transitions:
    """Between the catalogue's items; held-out interactions do not count."""
    num_items = len(catalogue)
    items = catalogue.find(histories.rows["item_id"])
    items[np.arange(len(items)) >= histories.train_end] = -1
    targets = np.where(histories.are_targets, items, -1)
    counts = np.bincount(items[items >= 0], minlength=num_items)
    lengths, followers, shares = [], [], []
    for first, behind in _blocks(counts):
        here = np.where((items >= first) & (items < behind), items, -1)
        keys, weights = _pairs(here, targets, histories.users, num_items)
        pairs, of_pair = np.unique(keys, return_inverse=True)
        sums: Floats = np.bincount(of_pair, weights, len(pairs)).astype(np.float64)
        kept = _strongest(pairs, sums, num_items)
        pairs, sums = pairs[kept], sums[kept]
        sources = pairs // num_items
        lengths.append(np.bincount(sources - first, minlength=behind - first))
        followers.append(pairs % num_items)
        shares.append(sums / counts[sources])
    return Transitions(
        catalogue.item_ids,
        np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64),
        np.concatenate(followers).astype(np.int32),
        np.concatenate(shares).astype(np.float32),
    )


def _blocks(counts: Index) -> list[tuple[int, int]]:
    """Ranges of items of which no more than `_MAX_PAIRS` have to be counted at a time, but for single items."""
    number = np.cumsum(counts) * 2 * _WINDOW // _MAX_PAIRS
    bounds = [0, *(1 + np.flatnonzero(np.diff(number))).tolist(), len(counts)]
    return list(itertools.pairwise(bounds))


def _pairs(sources: Index, targets: Index, users: Index, num_items: int) -> tuple[Index, Floats]:
    """Source * num_items + target of all pairs within the window, and what each counts; -1 is no item."""
    keys, weights = [np.zeros(0, np.int64)], [np.zeros(0)]
    for distance in range(1, _WINDOW + 1):
        older, newer = slice(None, -distance), slice(distance, None)
        same = users[older] == users[newer]
        for source, target, share in (
            (sources[older], targets[newer], 1.0),
            (sources[newer], targets[older], _BEFORE),
        ):
            known = same & (source >= 0) & (target >= 0) & (source != target)
            keys.append(source[known] * num_items + target[known])
            weights.append(np.full(len(keys[-1]), share * _FADE ** (distance - 1)))
    return np.concatenate(keys), np.concatenate(weights)


def _strongest(pairs: Index, sums: Floats, num_items: int) -> Index:
    """Places of the strongest `_MAX_FOLLOWERS` pairs of each source, ascending; ties by item."""
    order = np.lexsort((pairs, -sums, pairs // num_items))
    sources = pairs[order] // num_items
    new = np.flatnonzero(np.append(True, sources[1:] != sources[:-1])[: len(sources)])
    ranks = np.arange(len(sources)) - np.repeat(new, np.diff(np.append(new, len(sources))))
    return np.sort(order[ranks < _MAX_FOLLOWERS])
