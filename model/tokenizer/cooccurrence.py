"""Item vectors from behaviour: items that are used near each other get similar vectors.

Shapes: N items, V vector width.
"""

import warnings

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

CONTEXT_SMOOTHING = 0.75
"""Power on context counts (word2vec, Levy and Goldberg 2015): keeps rare items from dominating."""
_SVD_OVERSAMPLING = 16
_SVD_ITERATIONS = 2
_BLOCK = 1 << 21
"""Interactions whose pairs are counted at a time; memory is that of the distinct pairs, not of all."""

Index = npt.NDArray[np.int64]


def cooccurrence_vectors(
    users: Index, items: Index, num_items: int, window: int, width: int
) -> Tensor:
    """[N, V] float32 vectors of unit length from interactions in (user, time) order; `items` are indices or -1.

    Positive pointwise mutual information of items at most `window` interactions apart, then a truncated SVD:
    U sqrt(S). Items that never co-occur get zeros. Uses torch's global random state.
    """
    known = items >= 0
    pairs, counts = _count_pairs(users[known], items[known], num_items, window)
    vectors = torch.zeros(num_items, width)
    if not len(pairs):
        return vectors
    ones, others = pairs // num_items, pairs % num_items
    rows, columns = np.concatenate([ones, others]), np.concatenate([others, ones])
    information = _ppmi(rows, columns, np.concatenate([counts, counts]), num_items)
    rank = min(width + _SVD_OVERSAMPLING, num_items)
    left, singular = _truncated_svd(
        _sparse(rows, columns, information, num_items),
        _sparse(columns, rows, information, num_items),
        rank,
    )
    kept = min(width, rank)
    vectors[:, :kept] = (left * singular.sqrt())[:, :kept]
    return torch.nn.functional.normalize(vectors, dim=1)


def _count_pairs(
    users: Index, items: Index, num_items: int, window: int
) -> tuple[Index, npt.NDArray[np.float64]]:
    """Keys a * N + b with a < b of co-occurring pairs, ascending, and how often each occurs."""
    keys, counts = np.zeros(0, np.int64), np.zeros(0)
    for start in range(0, len(items), _BLOCK):
        end = start + _BLOCK + window
        found = _pairs(users[start:end], items[start:end], num_items, window)
        found.sort()
        keys, counts = _merge(keys, counts, found)
    return keys, counts


def _pairs(users: Index, items: Index, num_items: int, window: int) -> Index:
    """Keys of the pairs whose first interaction is one of the first `_BLOCK`."""
    keys = [np.zeros(0, np.int64)]
    for distance in range(1, min(window, len(items) - 1) + 1):
        first = slice(0, min(_BLOCK, len(items) - distance))
        second = slice(distance, first.stop + distance)
        one, other = items[first], items[second]
        kept = (users[first] == users[second]) & (one != other)
        one, other = one[kept], other[kept]
        keys.append(np.minimum(one, other) * num_items + np.maximum(one, other))
    return np.concatenate(keys)


def _merge(
    keys: Index, counts: npt.NDArray[np.float64], found: Index
) -> tuple[Index, npt.NDArray[np.float64]]:
    """Counts of sorted distinct `keys`, with one more for each of the sorted `found`."""
    starts = np.flatnonzero(np.diff(found, prepend=-1))
    more_keys, more = found[starts], np.diff(np.append(starts, len(found))).astype(np.float64)
    if not len(keys):
        return more_keys, more
    joined, inverse = np.unique(np.concatenate([keys, more_keys]), return_inverse=True)
    return joined, np.bincount(inverse, np.concatenate([counts, more])).astype(np.float64)


def _ppmi(
    rows: Index, columns: Index, counts: npt.NDArray[np.float64], num_items: int
) -> npt.NDArray[np.float32]:
    """max(0, log(p(a, b) / (p(a) p'(b)))) of each pair, p' smoothed."""
    occurrences = np.bincount(rows, counts, num_items)
    smoothed = occurrences**CONTEXT_SMOOTHING
    smoothed /= smoothed.sum()
    information = np.log(counts / (occurrences[rows] * smoothed[columns]))
    return np.maximum(information, 0).astype(np.float32)


def _sparse(rows: Index, columns: Index, values: npt.NDArray[np.float32], num_items: int) -> Tensor:
    kept = np.flatnonzero(values)
    kept = kept[np.argsort(rows[kept], kind="stable")]
    ends = np.cumsum(np.bincount(rows[kept], minlength=num_items))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            torch.from_numpy(np.append(0, ends)),
            torch.from_numpy(columns[kept]),
            torch.from_numpy(values[kept]),
            (num_items, num_items),
            check_invariants=False,
        )


def _truncated_svd(matrix: Tensor, transposed: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Left singular vectors [N, rank] and singular values by random projection (Halko et al., arXiv 0909.4061, 4.4).

    `torch.svd_lowrank` does the same, but multiplies with the transpose of a row-compressed matrix, which is slow.
    """
    basis = torch.linalg.qr(matrix @ torch.randn(matrix.shape[1], rank))[0]
    for _ in range(_SVD_ITERATIONS):
        basis = torch.linalg.qr(transposed @ basis)[0]
        basis = torch.linalg.qr(matrix @ basis)[0]
    left, singular, _ = torch.linalg.svd((transposed @ basis).T, full_matrices=False)
    return basis @ left, singular
