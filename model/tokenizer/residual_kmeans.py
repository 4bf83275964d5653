"""Residual k-means: each level clusters what the levels before left over.

Shapes: N items, D levels, K codes, V vector width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from model.tokenizer.kmeans import fit_centroids
from model.tokenizer.residual_codes import level_codes, residual_codes, sum_of_codes
from model.tokenizer.tokenizer import UNBOUNDED, Bounds, TokenizerConfig


class ResidualKMeans:
    """A fitted tokenizer: code d is the nearest centroid of level d to the residual after the levels before."""

    def __init__(self, codebooks: Sequence[Tensor]) -> None:
        """From fitted centroids, [K, V] per level."""
        self.codebooks = list(codebooks)

    @classmethod
    def fit(
        cls, vectors_NV: Tensor, config: TokenizerConfig, generator: torch.Generator
    ) -> "ResidualKMeans":
        """k-means per level; with `balance`, centroids are the means of items within the bound."""
        residual_NV, codebooks = vectors_NV.clone(), []
        for num_codes in config.codebook_sizes:
            centroids_KV = fit_centroids(
                residual_NV, num_codes, config.kmeans, config.balance, generator
            )
            codebooks.append(centroids_KV)
            if len(codebooks) < config.num_levels:
                residual_NV -= centroids_KV[level_codes(residual_NV, centroids_KV, config.balance)]
        return cls(codebooks)

    def assign(self, vectors_NV: Tensor, bounds: Bounds = UNBOUNDED) -> Tensor:
        """[N, D] int64 codes, without refitting."""
        return residual_codes(vectors_NV, self.codebooks, bounds)

    def decode(self, codes_ND: Tensor) -> Tensor:
        """[N, V]: sums of centroids."""
        return sum_of_codes(codes_ND, self.codebooks)

    def tensors(self) -> dict[str, Tensor]:
        """One codebook per level."""
        return {
            f"codebooks.{level}": codebook.contiguous()
            for level, codebook in enumerate(self.codebooks)
        }

    @classmethod
    def restore(cls, tensors: dict[str, Tensor]) -> "ResidualKMeans":
        """The tokenizer that gave these `tensors`."""
        return cls([tensors[f"codebooks.{level}"] for level in range(len(tensors))])
