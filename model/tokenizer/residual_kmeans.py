"""Residual k-means: each level clusters what the levels before left over.

Shapes: N items, D levels, K codes, V vector width.
"""

import torch
from torch import Tensor

from model.tokenizer.tokenizer import TokenizerConfig


class ResidualKMeans:
    """A fitted tokenizer: code d is the nearest centroid of level d to the residual after the levels before."""

    def __init__(self, codebooks_DKV: Tensor) -> None:
        """From fitted centroids."""
        self._codebooks_DKV = codebooks_DKV

    @property
    def codebooks(self) -> Tensor:
        """[D, K, V] centroids."""
        return self._codebooks_DKV

    @classmethod
    def fit(
        cls, vectors_NV: Tensor, config: TokenizerConfig, generator: torch.Generator
    ) -> "ResidualKMeans":
        """Lloyd's algorithm per level, from randomly sampled distinct items; dead codes are re-seeded."""
        residual_NV, levels = vectors_NV.clone(), []
        for _ in range(config.num_levels):
            centroids_KV = _fit_level(residual_NV, config, generator)
            residual_NV -= centroids_KV[_nearest(residual_NV, centroids_KV)[1]]
            levels.append(centroids_KV)
        return cls(torch.stack(levels))

    def assign(self, vectors_NV: Tensor) -> Tensor:
        """[N, D] int64 codes, without refitting."""
        residual_NV, codes = vectors_NV.clone(), []
        for centroids_KV in self._codebooks_DKV:
            nearest_N = _nearest(residual_NV, centroids_KV)[1]
            residual_NV -= centroids_KV[nearest_N]
            codes.append(nearest_N)
        return torch.stack(codes, 1)


def _fit_level(vectors_NV: Tensor, config: TokenizerConfig, generator: torch.Generator) -> Tensor:
    num_codes = config.codebook_size
    chosen = torch.randperm(len(vectors_NV), generator=generator)[:num_codes]
    centroids_KV = torch.zeros(num_codes, vectors_NV.shape[1])
    centroids_KV[: len(chosen)] = vectors_NV[chosen]
    for _ in range(config.num_iterations):
        distance_N, nearest_N = _nearest(vectors_NV, centroids_KV)
        sizes_K = torch.bincount(nearest_N, minlength=num_codes)
        sums_KV = torch.zeros_like(centroids_KV).index_add_(0, nearest_N, vectors_NV)
        centroids_KV = sums_KV / sizes_K.clamp(min=1)[:, None]
        dead = torch.nonzero(sizes_K == 0)[:, 0][: len(vectors_NV)]
        if len(dead):
            centroids_KV[dead] = vectors_NV[distance_N.topk(len(dead)).indices]
    return centroids_KV


def _nearest(vectors_NV: Tensor, centroids_KV: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distance, up to a constant per item made whole, and index of each item's nearest centroid."""
    scores_NK = vectors_NV @ centroids_KV.T - centroids_KV.square().sum(1) / 2
    best = scores_NK.max(1)
    return vectors_NV.square().sum(1) - 2 * best.values, best.indices
