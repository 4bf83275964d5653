"""Described candidates of training contexts: few of each, and shown several times, since describing them costs more than a step.

Shapes: B contexts, N candidates, K kept ones, F features.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model.network import Network
from model.repeat_features import STRENGTH, RepeatCandidates
from model.training.batches import BatchBuilder
from model.training.draws import StepDraws
from model.training.histories import Index

_STEPS_PER_BATCH = 4
"""One of so many steps describes new contexts; the others show some of the last ones again."""
_BATCHES_KEPT = 64
_STRONGEST, _SAMPLED = 128, 128
"""Candidates of a context that are shown, beside its targets: those with the largest counts, and at least so many of the others."""
_NEVER = -1e9


@dataclass(frozen=True)
class CandidateBatch:
    """What the scores read of some contexts' candidates."""

    features: Tensor
    """[B, K, F]: as Repeats.describe, in half precision."""
    strength: Tensor
    """[B, K]"""
    first_rows: Tensor
    """[B, K]"""
    weights: Tensor
    """[B, K]: as BatchBuilder.repeats."""
    log_odds: Tensor
    """[B, K]: logarithm of how many candidates each stands for; far below 0 in padding."""

    def log_shares(self, network: Network) -> Tensor:
        """[B, K]: log P_repeat, all candidates estimated by those that were kept."""
        scores = network.repeats.scores_of(self.features.float(), self.strength, self.first_rows)
        return (scores + self.log_odds).log_softmax(-1)


class CandidateBatches:
    """By step. Which batch a step gets is a matter of seed and number, whatever is in memory."""

    def __init__(
        self, network: Network, builder: BatchBuilder, draws: StepDraws, seed: int
    ) -> None:
        """The network's item table and standardisation must stay as they are."""
        self._network, self._builder, self._draws, self._seed = network, builder, draws, seed
        self._kept: dict[int, CandidateBatch] = {}

    def of_step(self, step: int) -> CandidateBatch:
        """New contexts, or a batch of before."""
        newest, place = divmod(step, _STEPS_PER_BATCH)
        number = newest
        if place:
            random = np.random.default_rng((self._seed, step))
            number = int(random.integers(max(0, newest + 1 - _BATCHES_KEPT), newest + 1))
        if number not in self._kept:
            self._kept = {n: one for n, one in self._kept.items() if n > newest - _BATCHES_KEPT}
            self._kept[number] = self._sampled(number)
        return self._kept[number]

    @torch.no_grad()
    def of_cuts(self, cuts: Index) -> CandidateBatch:
        """All candidates of some contexts."""
        candidates, weights = self._builder.repeats(cuts)
        log_odds = torch.where(candidates.real, 0.0, _NEVER)
        return self._described(candidates, weights, log_odds)

    @torch.no_grad()
    def _sampled(self, number: int) -> CandidateBatch:
        whole = self.of_cuts(self._draws.cuts(number))
        random = torch.Generator().manual_seed(int(self._seed) * 1_000_003 % 2**40 + number)
        kept_BK, log_odds_BK = _sample(whole, random)
        columns = kept_BK[..., None].expand(-1, -1, whole.features.shape[-1])
        return CandidateBatch(
            features=whole.features.gather(1, columns),
            strength=whole.strength.gather(1, kept_BK),
            first_rows=whole.first_rows.gather(1, kept_BK),
            weights=whole.weights.gather(1, kept_BK),
            log_odds=log_odds_BK,
        )

    def _described(
        self, candidates: RepeatCandidates, weights: Tensor, log_odds: Tensor
    ) -> CandidateBatch:
        vectors = self._network.features.item_vectors(candidates.rows)
        features = self._network.repeats.describe(candidates, vectors)
        # Copies: parts of what describes would keep the whole of it.
        strength, rows = candidates.features[..., STRENGTH].clone(), candidates.first_rows.clone()
        return CandidateBatch(features.half(), strength, rows, weights, log_odds)


def _sample(whole: CandidateBatch, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Places [B, K] of the targets and the strongest candidates, and of some others, which stand for all of these; `log_odds`."""
    real_BN = whole.log_odds == 0
    strongest = min(_STRONGEST, real_BN.shape[1])
    strength_BN = torch.where(real_BN, whole.strength, _NEVER)
    sure_BN = (whole.weights > 0) & real_BN
    sure_BN.scatter_(1, strength_BN.topk(strongest).indices, True)
    sure_BN &= real_BN
    order_BN = torch.rand(real_BN.shape, generator=random).where(real_BN, -1.0)
    order_BN = torch.where(sure_BN, 2.0, order_BN)
    num_kept = min(int(sure_BN.sum(1).max()) + _SAMPLED, real_BN.shape[1])
    kept_BK = order_BN.topk(num_kept).indices
    others_B = (real_BN & ~sure_BN).sum(1)
    chosen_BK = real_BN.gather(1, kept_BK) & ~sure_BN.gather(1, kept_BK)
    stands_for_B = others_B / chosen_BK.sum(1).clamp(min=1)
    log_odds_BK = torch.where(chosen_BK, stands_for_B[:, None].clamp(min=1).log(), 0.0)
    return kept_BK, log_odds_BK.where(real_BN.gather(1, kept_BK), _NEVER)
