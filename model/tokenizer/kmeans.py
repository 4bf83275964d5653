"""k-means of one level: k-means++ seeding, Lloyd's algorithm, dead codes seeded again.

Shapes: N items, K codes, V vector width.
"""

import torch
from torch import Tensor

from model.tokenizer.residual_codes import level_codes
from model.tokenizer.tokenizer import KMeansConfig, split

_SEEDING_POINTS_PER_CODE = 16
_MAX_SEEDING_POINTS = 65_536


def fit_centroids(
    vectors_NV: Tensor,
    num_codes: int,
    config: KMeansConfig,
    balance: float,
    generator: torch.Generator,
) -> Tensor:
    """[K, V] centroids; `balance` as in `Bounds`. Deterministic by the generator and the number of threads."""
    sample_SV = _sample(vectors_NV, num_codes * config.points_per_code, generator)
    seeding = max(num_codes, min(num_codes * _SEEDING_POINTS_PER_CODE, _MAX_SEEDING_POINTS))
    centroids_KV = spread_seeds(sample_SV[:seeding], num_codes, generator)
    codes_S = level_codes(sample_SV, centroids_KV, balance)
    for _ in range(config.num_iterations):
        centroids_KV = lloyd_step(sample_SV, codes_S, centroids_KV)
        before_S, codes_S = codes_S, level_codes(sample_SV, centroids_KV, balance)
        if torch.equal(before_S, codes_S):
            break
    if len(sample_SV) < len(vectors_NV):
        codes_N = level_codes(vectors_NV, centroids_KV, balance)
        centroids_KV = lloyd_step(vectors_NV, codes_N, centroids_KV)
    return centroids_KV


def _sample(vectors_NV: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """At most `size` items, in random order."""
    return vectors_NV[torch.randperm(len(vectors_NV), generator=generator)[:size]]


def spread_seeds(vectors_NV: Tensor, num_codes: int, generator: torch.Generator) -> Tensor:
    """[K, V] items by k-means++: each drawn with probability proportional to its squared distance to those before.

    Where all items are taken, the first is repeated.
    """
    squares_N = vectors_NV.square().sum(1)
    distances_N = torch.full_like(squares_N, torch.inf)
    chosen = [0] if len(vectors_NV) else []
    for _ in range(num_codes - 1):
        seed_V = vectors_NV[chosen[-1]]
        to_seed_N = squares_N - 2 * (vectors_NV @ seed_V) + seed_V.square().sum()
        distances_N = torch.minimum(distances_N, to_seed_N.clamp_(min=0))
        distances_N[chosen[-1]] = 0
        if not distances_N.any():
            break
        chosen.append(int(torch.multinomial(distances_N, 1, generator=generator)))
    chosen += [chosen[0]] * (num_codes - len(chosen))
    return vectors_NV[chosen]


def lloyd_step(vectors_NV: Tensor, codes_N: Tensor, centroids_KV: Tensor) -> Tensor:
    """Centroids at the means of their items; a dead code moves onto the item that its own centroid fits worst."""
    num_codes = len(centroids_KV)
    sizes_K = torch.bincount(codes_N, minlength=num_codes)
    sums_KV = torch.zeros_like(centroids_KV).index_add_(0, codes_N, vectors_NV)
    alive_K = sizes_K > 0
    means_KV = torch.where(alive_K[:, None], sums_KV / sizes_K.clamp(min=1)[:, None], centroids_KV)
    dead = torch.nonzero(~alive_K)[:, 0]
    if len(dead):
        errors_N = _errors(vectors_NV, codes_N, means_KV)
        worst = errors_N.topk(min(len(dead), len(errors_N)))
        apart = worst.indices[worst.values > 0]
        means_KV[dead[: len(apart)]] = vectors_NV[apart]
    return means_KV


def _errors(vectors_NV: Tensor, codes_N: Tensor, centroids_KV: Tensor) -> Tensor:
    """[N] squared distances to the items' own centroids."""
    blocks = zip(split(vectors_NV), split(codes_N), strict=True)
    return torch.cat([(block - centroids_KV[codes]).square().sum(1) for block, codes in blocks])
