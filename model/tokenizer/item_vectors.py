"""Item vectors put together from blocks, of which each tells something else of an item: behaviour, content, text.

Shapes: N items, R known items, W block width, V width of all blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from model.errors import ModelConfigError
from model.limits import check_limits
from model.tokenizer.fold_in import Companions, inverse_second_moment
from model.tokenizer.text import FittedText
from model.tokenizer.tokenizer import split

COOCCURRENCE, CONTENT, TEXT = "cooccurrence", "content", "text"
_MAX_WIDTH = 4096  # axes are found in its square
_NEAREST = 8
"""Known items whose mean stands in for a block that an item lacks."""
_MAX_REFERENCES = 65_536


@dataclass(frozen=True, kw_only=True)
class ItemVectorConfig:
    """What item vectors are made of: `[train.items]`. Raises ModelConfigError."""

    cooccurrence_weight: float = 1.0
    """Share of what users interact with in turn; 0: not used."""
    cooccurrence_width: int = 64
    window: int = 10
    """Neighbours on either side that count as co-occurring, in a user's history."""
    vectors: Path | None = None
    """Given vectors, .parquet or .npz; see `model.tokenizer.content`."""
    content_weight: float = 1.0
    """Of the given vectors."""
    text_weight: float = 0.0
    """Of the titles in the items file; 0: not used."""
    text_width: int = 64
    text_encoder: str = "hashed_ngrams"

    def __post_init__(self) -> None:
        """At least one block counts."""
        check_limits(self, "cooccurrence_width", "text_width", least=1, most=_MAX_WIDTH)
        check_limits(self, "window", least=1)
        check_limits(self, "cooccurrence_weight", "content_weight", "text_weight", least=0)
        weights = (self.cooccurrence_weight, self.content_weight, self.text_weight)
        given = self.content_weight if self.vectors else 0.0
        if self.cooccurrence_weight + given + self.text_weight == 0:
            raise ModelConfigError(
                f"cooccurrence_weight, content_weight and text_weight are {weights}; one source must be above 0 "
                "(content_weight counts where `vectors` is given)"
            )


@dataclass(frozen=True)
class Block:
    """Columns of the item vectors; a known block has the length `weight`."""

    name: str
    width: int
    weight: float


class ItemVectors:
    """The vectors of known items, and how a new item gets one."""

    def __init__(
        self, blocks: Sequence[Block], vectors_RV: Tensor, text: FittedText | None
    ) -> None:
        """Blocks in the order of the columns; `text` where one of them is the titles'."""
        self.blocks = tuple(blocks)
        self.vectors_RV = vectors_RV
        self.text = text

    @classmethod
    def join(
        cls, parts: Sequence[tuple[str, float, Tensor]], text: FittedText | None = None
    ) -> "ItemVectors":
        """From (name, weight, [R, W]); a row of zeros means that an item lacks the block."""
        blocks = [Block(name, part.shape[1], weight) for name, weight, part in parts]
        joined = cls(blocks, torch.cat([part for _, _, part in parts], 1).float(), text)
        joined.vectors_RV = joined._scaled(joined.vectors_RV)
        joined.vectors_RV = joined._filled(joined.vectors_RV)
        return joined

    def rows(self, indices: npt.NDArray[np.int64]) -> "ItemVectors":
        """The same for some of the items, in this order."""
        return ItemVectors(self.blocks, self.vectors_RV[torch.from_numpy(indices)], self.text)

    def with_rows(self, vectors_NV: Tensor) -> "ItemVectors":
        """The same with more items behind these."""
        more = vectors_NV.to(self.vectors_RV.dtype)
        return ItemVectors(self.blocks, torch.cat([self.vectors_RV, more]), self.text)

    def of_new(self, given: dict[str, Tensor], companions: Sequence[Companions]) -> Tensor:
        """[N, V] from the blocks `given` and, per item, what it was seen with, which may be nothing.

        A block that is not given comes from the companions, or else from the items nearest in what is known.
        Raises ModelConfigError for a block that does not exist here, has another shape, or is not finite.
        """
        names = [block.name for block in self.blocks]
        if unknown := set(given) - set(names):
            raise ModelConfigError(f"the item vectors have no {sorted(unknown)}; they have {names}")
        parts = [self._given(block, len(companions), given) for block in self.blocks]
        vectors_NV = self._scaled(torch.cat(parts, 1))
        return self._filled(self._merged(vectors_NV, self._scaled(self._folded(companions))))

    def _folded(self, companions: Sequence[Companions]) -> Tensor:
        """Weighted means of the companions; where behaviour is concerned, as a new row of the decomposition."""
        folded_NV = torch.zeros(len(companions), self.vectors_RV.shape[1])
        for row, seen in enumerate(companions):
            known = self.vectors_RV[torch.from_numpy(seen.indices)].float()
            folded_NV[row] = torch.from_numpy(seen.weights) @ known
        parts = [
            part @ self._inverse_moment if block.name == COOCCURRENCE else part
            for part, block in zip(self._parts(folded_NV), self.blocks, strict=True)
        ]
        return torch.cat(parts, 1)

    @cached_property
    def _inverse_moment(self) -> Tensor:
        names = [block.name for block in self.blocks]
        return inverse_second_moment(self._parts(self.vectors_RV)[names.index(COOCCURRENCE)])

    def _given(self, block: Block, num_items: int, given: dict[str, Tensor]) -> Tensor:
        part = given.get(block.name)
        if part is None:
            return torch.zeros(num_items, block.width)
        if part.shape != (num_items, block.width) or not part.isfinite().all():
            raise ModelConfigError(
                f"{block.name} of {num_items} new items has the shape {tuple(part.shape)}; "
                f"finite numbers, [{num_items}, {block.width}], are needed"
            )
        return part.float()

    def _parts(self, vectors_NV: Tensor) -> Sequence[Tensor]:
        return torch.split(vectors_NV, [block.width for block in self.blocks], 1)

    def _scaled(self, vectors_NV: Tensor) -> Tensor:
        """Every block at its weight."""
        parts = self._parts(vectors_NV)
        pairs = zip(parts, self.blocks, strict=True)
        return torch.cat([functional.normalize(part, dim=1) * b.weight for part, b in pairs], 1)

    def _merged(self, vectors_NV: Tensor, substitute_NV: Tensor) -> Tensor:
        """Blocks that are all zeros, from the substitute."""
        pairs = zip(self._parts(vectors_NV), self._parts(substitute_NV), strict=True)
        return torch.cat(
            [torch.where(one.any(1, keepdim=True), one, other) for one, other in pairs], 1
        )

    def _filled(self, vectors_NV: Tensor) -> Tensor:
        """Lacking blocks from the mean of the nearest known items; items of which nothing is known stay zero.

        Zeros do not count in an inner product, so items are compared in the blocks that they have.
        """
        partial = torch.nonzero(self._lacks_some(vectors_NV) & vectors_NV.any(1))[:, 0]
        references_RV = self._references
        if not len(partial) or not len(references_RV):
            return vectors_NV
        filled_NV = vectors_NV.clone()
        for rows in split(partial):
            scores = vectors_NV[rows] @ references_RV.T
            near = scores.topk(min(_NEAREST, len(references_RV)), 1).indices
            means = self._scaled(references_RV[near].mean(1))
            filled_NV[rows] = self._merged(vectors_NV[rows], means)
        return filled_NV

    def _lacks_some(self, vectors_NV: Tensor) -> Tensor:
        return torch.stack([~part.any(1) for part in self._parts(vectors_NV)]).any(0)

    @cached_property
    def _references(self) -> Tensor:
        """Known items that lack nothing, at most `_MAX_REFERENCES` of them, evenly spread."""
        whole = torch.nonzero(~self._lacks_some(self.vectors_RV))[:, 0]
        step = -(-len(whole) // _MAX_REFERENCES) or 1
        return self.vectors_RV[whole[::step]].float()


def principal_axes(vectors_NV: Tensor) -> Tensor:
    """[V, V] orthogonal: `vectors_NV @ axes` has its columns in the order of importance."""
    return torch.linalg.eigh(vectors_NV.T @ vectors_NV)[1].flip(1)
