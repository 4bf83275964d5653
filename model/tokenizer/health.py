"""How well codes are used, level by level: entropy, dead codes, bucket sizes, and what the codes lose of the vectors."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.tokenizer.tokenizer import Tokenizer, split


@dataclass(frozen=True)
class LevelHealth:
    """One level of codes, and the buckets of items that share all codes up to it."""

    codebook_size: int
    entropy_bits: float
    """Of the items' distribution over codes; log2 of the codebook size at best."""
    entropy_share: float
    """Of that best; 1 for a single code."""
    dead_codes: int
    largest_code: int
    """Items of the most used code."""
    num_buckets: int
    """Distinct prefixes; at the last level, SIDs."""
    mean_bucket: float
    p99_bucket: float
    """Of prefixes, not of items."""
    largest_bucket: int
    unexplained: float
    """Share of the vectors' variance that the codes up to this level do not tell."""


@dataclass(frozen=True)
class TokenizerHealth:
    """All levels, and the buckets they end in."""

    levels: list[LevelHealth]
    num_items: int
    num_sids: int
    unique_ratio: float
    """Share of items that are alone in their bucket."""
    largest_bucket: int


def tokenizer_health(
    tokenizer: Tokenizer,
    vectors_NV: Tensor,
    codes_ND: npt.NDArray[np.int64],
    codebook_sizes: tuple[int, ...],
) -> TokenizerHealth:
    """Health of the codes that `tokenizer` gave to N items."""
    prefixes_N, levels = np.zeros(len(codes_ND), np.int64), []
    for level, size in enumerate(codebook_sizes):
        joined = prefixes_N * size + codes_ND[:, level]
        prefixes_N, buckets = np.unique(joined, return_inverse=True, return_counts=True)[1:]
        unexplained = _unexplained(
            tokenizer, vectors_NV, torch.from_numpy(codes_ND[:, : level + 1])
        )
        levels.append(_level_health(codes_ND[:, level], size, buckets, unexplained))
    return TokenizerHealth(
        levels=levels,
        num_items=len(codes_ND),
        num_sids=len(buckets),
        unique_ratio=float((buckets == 1).sum() / len(codes_ND)),
        largest_bucket=int(buckets.max()),
    )


def _level_health(
    codes_N: npt.NDArray[np.int64],
    codebook_size: int,
    buckets: npt.NDArray[np.int64],
    unexplained: float,
) -> LevelHealth:
    counts = np.bincount(codes_N, minlength=codebook_size)
    share = counts[counts > 0] / len(codes_N)
    entropy_bits = float(-(share * np.log2(share)).sum())
    best_bits = float(np.log2(codebook_size))
    return LevelHealth(
        codebook_size=codebook_size,
        entropy_bits=entropy_bits,
        entropy_share=entropy_bits / best_bits if best_bits else 1.0,
        dead_codes=int((counts == 0).sum()),
        largest_code=int(counts.max()),
        num_buckets=len(buckets),
        mean_bucket=float(buckets.mean()),
        p99_bucket=float(np.percentile(buckets, 99)),
        largest_bucket=int(buckets.max()),
        unexplained=unexplained,
    )


def _unexplained(tokenizer: Tokenizer, vectors_NV: Tensor, codes_ND: Tensor) -> float:
    """Squared error over variance; 0 where the vectors do not differ and are rebuilt."""
    mean_V = vectors_NV.mean(0)
    error = variance = 0.0
    for block, codes in zip(split(vectors_NV), split(codes_ND), strict=True):
        error += float((block - tokenizer.decode(codes)).square().sum())
        variance += float((block - mean_V).square().sum())
    return error / max(variance, 1e-12) if error > 1e-9 * len(vectors_NV) else 0.0
