"""Codes by residuals: each level takes the centroid nearest to what the levels before left over.

Shapes: N items, D levels, K codes, V vector width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from model.tokenizer.balance import bounded_codes, bounded_last_codes
from model.tokenizer.tokenizer import UNBOUNDED, Bounds, split


def nearest(vectors_NV: Tensor, centroids_KV: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distance to and index of each item's nearest centroid, in blocks: memory does not grow with N times K."""
    offsets_K = centroids_KV.square().sum(1) / -2
    distances, codes = [], []
    for block in split(vectors_NV):
        best = torch.addmm(offsets_K, block, centroids_KV.T).max(1)
        distances.append((block.square().sum(1) - 2 * best.values).clamp(min=0))
        codes.append(best.indices)
    return torch.cat(distances), torch.cat(codes)


def level_codes(vectors_NV: Tensor, centroids_KV: Tensor, balance: float) -> Tensor:
    """[N] codes of one level: the nearest, within `balance` where it is set."""
    if balance == 0:
        return nearest(vectors_NV, centroids_KV)[1]
    capacity = max(1, int(balance * len(vectors_NV) / len(centroids_KV)))
    enough = -(-len(vectors_NV) // len(centroids_KV))
    return bounded_codes(vectors_NV, centroids_KV, max(capacity, enough))


def residual_codes(vectors_NV: Tensor, codebooks: Sequence[Tensor], bounds: Bounds) -> Tensor:
    """[N, D] codes."""
    if bounds == UNBOUNDED:
        return torch.cat([_nearest_codes(block, codebooks) for block in split(vectors_NV)])
    residual_NV = vectors_NV.clone()
    codes_ND = torch.empty(len(vectors_NV), len(codebooks), dtype=torch.int64)
    for level, centroids_KV in enumerate(codebooks):
        codes_ND[:, level] = level_codes(residual_NV, centroids_KV, bounds.balance)
        if level < len(codebooks) - 1:
            residual_NV -= centroids_KV[codes_ND[:, level]]
    if bounds.max_bucket:
        bounded_last_codes(codes_ND, residual_NV, codebooks[-1], bounds.max_bucket)
    return codes_ND


def _nearest_codes(block_NV: Tensor, codebooks: Sequence[Tensor]) -> Tensor:
    residual_NV, codes = block_NV, []
    for centroids_KV in codebooks:
        codes.append(nearest(residual_NV, centroids_KV)[1])
        residual_NV = residual_NV - centroids_KV[codes[-1]]
    return torch.stack(codes, 1)


def sum_of_codes(codes_ND: Tensor, codebooks: Sequence[Tensor]) -> Tensor:
    """[N, V] sums of the codes' centroids."""
    total_NV = codebooks[0][codes_ND[:, 0]]
    for level in range(1, codes_ND.shape[1]):
        total_NV = total_NV + codebooks[level][codes_ND[:, level]]
    return total_NV


def mean_residuals(vectors_NV: Tensor, codes_ND: Tensor, codebook_size: int) -> Tensor:
    """[D, K, V]: of each code, the mean of what its items' earlier codes leave over; zeros for codes without items.

    Codes as directions in the space of the items, whichever tokenizer made them.
    """
    residual_NV, levels = vectors_NV.clone(), []
    for codes_N in codes_ND.T:
        sizes_K = torch.bincount(codes_N, minlength=codebook_size)
        sums_KV = torch.zeros(codebook_size, vectors_NV.shape[1]).index_add_(
            0, codes_N, residual_NV
        )
        means_KV = sums_KV / sizes_K.clamp(min=1)[:, None]
        residual_NV -= means_KV[codes_N]
        levels.append(means_KV)
    return torch.stack(levels)
