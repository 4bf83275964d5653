"""How well codes are used: entropy, dead codes and bucket sizes per level, and how many items have a SID of their own."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class LevelHealth:
    """One level of codes."""

    entropy_bits: float
    """Of the items' distribution over codes; log2 of the codebook size at best."""
    dead_codes: int
    largest_code: int
    """Items of the most used code."""


@dataclass(frozen=True)
class TokenizerHealth:
    """All levels, and the buckets they end in."""

    levels: list[LevelHealth]
    num_items: int
    num_sids: int
    unique_ratio: float
    """Share of items that are alone in their bucket."""
    largest_bucket: int


def tokenizer_health(codes_ND: npt.NDArray[np.int64], codebook_size: int) -> TokenizerHealth:
    """Health of the codes of N items, [N, D]."""
    sizes = np.unique(codes_ND, axis=0, return_counts=True)[1]
    return TokenizerHealth(
        levels=[_level_health(column, codebook_size) for column in codes_ND.T],
        num_items=len(codes_ND),
        num_sids=len(sizes),
        unique_ratio=float((sizes == 1).sum() / len(codes_ND)),
        largest_bucket=int(sizes.max()),
    )


def _level_health(codes_N: npt.NDArray[np.int64], codebook_size: int) -> LevelHealth:
    counts = np.bincount(codes_N, minlength=codebook_size)
    share = counts[counts > 0] / len(codes_N)
    return LevelHealth(
        entropy_bits=float(-(share * np.log2(share)).sum()),
        dead_codes=int((counts == 0).sum()),
        largest_code=int(counts.max()),
    )
