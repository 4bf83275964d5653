"""Item vectors from behaviour: items that are used near each other get similar vectors.

Shapes: N items, V vector width.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_CONTEXT_SMOOTHING = 0.75
"""Power on context counts (word2vec, Levy and Goldberg 2015): keeps rare items from dominating."""
_SVD_OVERSAMPLING = 16
_SVD_ITERATIONS = 2


def item_vectors(
    users: npt.NDArray[np.int64],
    items: npt.NDArray[np.int64],
    num_items: int,
    window: int,
    width: int,
) -> Tensor:
    """[N, V] float32 vectors of unit length from interactions in (user, time) order; `items` are indices or -1.

    Positive pointwise mutual information of items at most `window` interactions apart, then a truncated SVD:
    U sqrt(S). Items that never co-occur get zeros. Uses torch's global random state.
    """
    known = items >= 0
    users, items = users[known], items[known]
    keys, counts = _pairs(users, items, num_items, window)
    vectors = torch.zeros(num_items, width)
    if not len(keys):
        return vectors
    matrix = _ppmi(keys // num_items, keys % num_items, counts, num_items)
    rank = min(width + _SVD_OVERSAMPLING, num_items)
    left, singular, _ = torch.svd_lowrank(matrix, q=rank, niter=_SVD_ITERATIONS)
    kept = min(width, rank)
    vectors[:, :kept] = (left * singular.sqrt())[:, :kept]
    return torch.nn.functional.normalize(vectors, dim=1)


def _pairs(
    users: npt.NDArray[np.int64], items: npt.NDArray[np.int64], num_items: int, window: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Keys a * N + b of co-occurring pairs, in both directions, and how often each occurs."""
    keys = []
    for distance in range(1, min(window, len(items) - 1) + 1):
        near = users[distance:] == users[:-distance]
        one, other = items[:-distance][near], items[distance:][near]
        different = one != other
        keys.append(one[different] * num_items + other[different])
        keys.append(other[different] * num_items + one[different])
    if not keys:
        return np.zeros(0, np.int64), np.zeros(0)
    unique, counts = np.unique(np.concatenate(keys), return_counts=True)
    return unique, counts.astype(np.float64)


def _ppmi(
    rows: npt.NDArray[np.int64],
    columns: npt.NDArray[np.int64],
    counts: npt.NDArray[np.float64],
    num_items: int,
) -> Tensor:
    """max(0, log(p(a, b) / (p(a) p'(b)))) as a sparse [N, N] matrix, p' smoothed."""
    occurrences = np.bincount(rows, counts, num_items)
    smoothed = occurrences**_CONTEXT_SMOOTHING
    smoothed /= smoothed.sum()
    information = np.log(counts / (occurrences[rows] * smoothed[columns]))
    kept = information > 0
    indices = torch.from_numpy(np.stack([rows[kept], columns[kept]]))
    values = torch.from_numpy(information[kept].astype(np.float32))
    return torch.sparse_coo_tensor(
        indices, values, (num_items, num_items), is_coalesced=True, check_invariants=False
    )
