"""Where an item would lie among co-occurrence vectors, told by the known items that it was seen with.

Shapes: R known items, W block width.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.tokenizer.cooccurrence import CONTEXT_SMOOTHING
from model.tokenizer.tokenizer import split

_SMALLEST_EIGENVALUE = 1e-3
"""Of the largest; directions with less are noise, or columns that no item uses."""


@dataclass(frozen=True)
class Companions:
    """Known items that a new one was seen with."""

    indices: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    """How surprising each is, sum 1."""


def popularity_shares(counts_R: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """[R], sum 1: how often each known item would be company by popularity alone; `counts_R` are their events."""
    popularity: npt.NDArray[np.float64] = np.maximum(counts_R, 1) ** CONTEXT_SMOOTHING
    return popularity / popularity.sum()


def weigh_companions(
    seen_with: npt.NDArray[np.int64], popularity_R: npt.NDArray[np.float64]
) -> Companions:
    """From indices of known items, with repetition; weighted by positive pointwise mutual information.

    Everything is seen with what is popular, so that tells little. `popularity_R` are the `popularity_shares`.
    """
    indices, times = np.unique(seen_with, return_counts=True)
    expected = len(seen_with) * popularity_R[indices]
    weights = np.maximum(np.log(times / expected), 0)
    weights = weights if weights.any() else times.astype(np.float64)
    total = weights.sum() if len(weights) else 1.0
    return Companions(indices, (weights / total).astype(np.float32))


def inverse_second_moment(vectors_RW: Tensor) -> Tensor:
    """[W, W], the pseudo-inverse of V^T V.

    Vectors are rows of U sqrt(S) of a matrix M = U S V^T; a new row m of M belongs at m V S^-1/2. With the rows of
    known items as columns of m, that is (m U sqrt(S)) times the inverse of (U sqrt(S))^T (U sqrt(S)) = S.
    """
    moment_WW = torch.zeros(vectors_RW.shape[1], vectors_RW.shape[1])
    for block in split(vectors_RW):
        moment_WW += block.float().T @ block.float()
    return torch.linalg.pinv(moment_WW, rtol=_SMALLEST_EIGENVALUE, hermitian=True)
