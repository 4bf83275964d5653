"""What the network knows of a user, encoded, as of one state version.

Shapes: M mid-term interactions, L blocks, H width, A heads, C = H / A, E lifecycle tokens, G I indexer keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from weakref import ReferenceType

import numpy as np
import numpy.typing as npt
from torch import Tensor

from model.catalogue import Catalogue
from model.fused_decoder import Memory
from model.popularity import Popularity
from model.repeats import RepeatEvidence, RepeatMixture
from state.item_statistics import ItemStatistics
from state.user_delta import UserSegments

_CANDIDATE_BYTES = 48
"""Of item, SID, score, share and whether it is new, in `evidence`; item and share once more, sorted."""


@dataclass(frozen=True)
class SealedChunks:
    """The sealed chunks of the mid-term segment, one behind the other."""

    positions: tuple[int, ...]
    """Where each begins in the history."""
    vectors: Tensor
    """[M, H]"""
    indexer_keys: Tensor
    """[L, M, G I]: what the indexer of each block compares with."""
    first_codes: npt.NDArray[np.int64]
    """[M]: of the items' SIDs, -1 for none; empty where the network does not read them."""
    statistics: Mapping[int, ItemStatistics]
    """By first position."""


@dataclass(frozen=True)
class Reused:
    """What an encoding took over from the one before; parts that the user does not have count as neither."""

    unchanged: bool = False
    """All of it: nothing had changed."""
    chunks: int = 0
    chunks_encoded: int = 0
    summary: int = 0
    summary_encoded: int = 0


@dataclass(frozen=True)
class KnownEvidence:
    """What was said for repeats, and of what."""

    catalogue: ReferenceType[Catalogue]
    """May go when it is replaced, however long the user stays."""
    popularity: ReferenceType[Popularity]
    """Likewise."""
    slot: int | None
    """Of the request's time; None: with the newest interaction."""
    evidence: RepeatEvidence
    mixture: RepeatMixture
    """What it comes to where nothing is blocked."""

    def is_of(self, catalogue: Catalogue, popularity: Popularity) -> bool:
        """Whether neither was replaced."""
        return self.catalogue() is catalogue and self.popularity() is popularity


@dataclass
class UserContext:
    """One user, encoded, as of one state version."""

    user: UserSegments
    sealed: SealedChunks
    lifecycle: Tensor | None
    """[1, L, 2, A, E, C]: keys and values of the summary's tokens; None without a summary of this bundle."""
    newest: tuple[Tensor, Tensor]
    """[M', H] of the open chunk's mid-term interactions, [R, H] of the recent ones; encoded."""
    older_statistics: ItemStatistics
    """Of the summary and the sealed chunks."""
    statistics: ItemStatistics
    """Of the whole history."""
    memory: Memory
    bos: Tensor
    """[1, H]: the state that predicts the first code."""
    first_logits: Tensor
    """[1, 1, K]: what it says of the first code."""
    max_candidates: int
    """That `evidence` can come to hold."""
    evidence: KnownEvidence | None = field(default=None, repr=False)
    """For repeats, of the catalogue and the popularity that were asked for last."""

    @cached_property
    def num_keys(self) -> tuple[int, int]:
        """Of one block, over all streams: real ones, and padding up to the fixed sizes."""
        real = sum(int((mask == 0).sum()) for mask in self.memory.masks)
        return real, sum(mask.numel() for mask in self.memory.masks) - real

    @property
    def num_bytes(self) -> int:
        """About what it occupies, `evidence` in full: that is made later."""
        tensors = [
            self.sealed.vectors,
            self.sealed.indexer_keys,
            *self.newest,
            *self.memory.tensors,
        ]
        parts = [*self.sealed.statistics.values(), self.older_statistics, self.statistics]
        statistics = sum(part.items.nbytes for part in parts) + self.sealed.first_codes.nbytes
        rows = self.user.tail.nbytes + sum(chunk.nbytes for chunk in self.user.chunks.values())
        evidence = _CANDIDATE_BYTES * self.max_candidates
        return sum(tensor.nbytes for tensor in tensors) + statistics + rows + evidence
