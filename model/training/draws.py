"""What is random about a step, drawn from the seed and the step's number alone: a resumed run draws as it would have.

Nothing about randomness has to be remembered, and every process of a data-parallel run draws the same.
"""

from collections.abc import Sequence

import numpy as np
import torch

from model.training.histories import Histories, Index, draw_cuts

_BATCHES_SORTED_TOGETHER = 16
_CUTS, _TARGETS, _DROPOUT = range(3)


class StepDraws:
    """Cuts, targets and dropout of each step."""

    def __init__(
        self, histories: Histories, seed: int, batch_size: int, even_len: int | None = None
    ) -> None:
        """`batch_size`: contexts per step, of all processes together; `even_len` as in `draw_cuts`."""
        self._histories, self._seed, self._batch_size = histories, seed, batch_size
        self._even_len = even_len
        self._drawn: tuple[int, tuple[float, ...]] | None = None
        self._batches: list[Index] = []

    def cuts(self, step: int, favoured: Sequence[tuple[Index, float]] = ()) -> Index:
        """The contexts of a step, of similar lengths; `favoured` as in `draw_cuts`, told apart by their shares."""
        block, place = divmod(step, _BATCHES_SORTED_TOGETHER)
        drawn = (block, tuple(share for _, share in favoured))
        if drawn != self._drawn:
            size = self._batch_size
            self._batches = draw_cuts(
                self._histories,
                size * _BATCHES_SORTED_TOGETHER,
                size,
                self._generator(_CUTS, block),
                favoured,
                self._even_len,
            )
            self._drawn = drawn
        return self._batches[place]

    def targets(self, step: int) -> np.random.Generator:
        """Draws the targets of a step."""
        return self._generator(_TARGETS, step)

    def seed_dropout(self, step: int, rank: int) -> None:
        """Seed torch for one step of one process."""
        words = np.random.SeedSequence((self._seed, _DROPOUT, step, rank)).generate_state(
            1, np.uint64
        )
        torch.manual_seed(int(words[0] >> np.uint64(1)))

    def _generator(self, purpose: int, number: int) -> np.random.Generator:
        return np.random.default_rng((self._seed, purpose, number))
