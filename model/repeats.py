"""Repeats: the probability that a user takes again what is in the history, or what all take, beside the generator's own.

P(SID) = (1 - g) P_generator(SID) + g P_repeat(SID). P_repeat is a softmax over the distinct items of the whole history, and
popular ones that it lacks, of a learned score s: from the statistics of user and item, from the item alone, from how the BOS state meets the item. The
gate weighs that evidence against the generator, g / (1 - g) = e^b sum_i e^s_i with b from the BOS state: it begins with
e^s = the item's decayed count, so counts smoothed by e^-b draws from the generator. (A pointer-generator after See et al.
2017, over items.)

Shapes: B contexts, N candidates, F features, T targets, S SIDs, H width, I rows of the item tables.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from model.errors import ModelConfigError
from model.layers import LayerConfig
from model.next_item import NextItems
from model.popularity import LEAST_COUNT
from model.repeat_features import NUM_FEATURES, SINCE_LAST, STRENGTH, RepeatCandidates
from state.item_statistics import HALF_LIVES_DAYS

_NEVER = -1e9
_FIRST_LOG_SMOOTHING = 4.6  # the generator weighs as much as a hundred interactions
_PRIOR_RETURNING, _PRIOR_BUYERS, _PRIOR_RECENT = 2.0, 20.0, 0.5
_PRIOR_INTERVALS, _PRIOR_LOG_INTERVAL = 10.0, 3.0  # three weeks, where nothing is known
NUM_ITEM_COUNTS = 7
_NUM_ITEM_FEATURES = 8
_NUM_SIMILARITIES = len(HALF_LIVES_DAYS)


@dataclass(frozen=True, kw_only=True)
class RepeatConfig:
    """The repeat path. Raises ModelConfigError for impossible sizes."""

    enabled: bool = True
    """Off where nobody takes anything twice: nothing is a candidate then."""
    max_items: int = 512
    """Strongest items of a user: kept in the summary, and candidates of a request."""
    max_popular: int = 300
    """Most popular items of the catalogue: candidates of a request, too, where the history lacks them. 0: none."""
    max_favoured: int = 20
    """Most probable candidates of a request that count in full when items are ranked."""
    tail_weight: float = 0.03
    """Of all other candidates that the history holds; 1: as probable as they are."""
    generator_weight: float = 0.5
    """Of the generator when items are ranked, where the history holds candidates; 1: as the gate says, which learns what is likely."""
    hidden_width: int = 64
    popularity_half_life_s: float = 259_200.0
    """Of the counts that say how popular an item is at the moment of a request; what trends must fade as fast."""

    def __post_init__(self) -> None:
        """Check the sizes, that the weights are above 0 and at most 1, and the half-life at least a second."""
        if min(self.max_items, self.max_favoured, self.hidden_width) < 1:
            raise ModelConfigError(
                f"max_items is {self.max_items}, max_favoured {self.max_favoured} and hidden_width {self.hidden_width}; "
                "each must be at least 1"
            )
        if self.max_popular < 0:
            raise ModelConfigError(
                f"max_popular of repeats is {self.max_popular}; it must be at least 0"
            )
        for name in ("tail_weight", "generator_weight"):
            if not 0 < getattr(self, name) <= 1:
                raise ModelConfigError(
                    f"{name} of repeats is {getattr(self, name)}; it must be above 0 and at most 1"
                )
        if not self.popularity_half_life_s >= 1:
            raise ModelConfigError(
                f"popularity_half_life_s of repeats is {self.popularity_half_life_s}; it must be at least 1"
            )

    @property
    def max_candidates(self) -> int:
        """That a request's history holds."""
        return self.max_items if self.enabled else 0

    @property
    def max_popular_candidates(self) -> int:
        """Beside them."""
        return self.max_popular if self.enabled else 0


@dataclass(frozen=True)
class RepeatMixture:
    """What the gate and the scores say of some contexts, and what is said of items beside their codes."""

    log_generator: Tensor
    """[B]: log (1 - g)"""
    log_repeat: Tensor
    """[B]: log g"""
    items: Tensor
    """[B, N]: as in RepeatCandidates."""
    sids: Tensor
    """[B, N]: as in RepeatCandidates."""
    shares: Tensor
    """[B, N]: P_repeat of each candidate; they sum to one where there is any."""
    new: Tensor
    """[B, N]: true where the history lacks the candidate."""
    next_items: NextItems | None = None
    """With the codes, it makes the generator's probabilities."""

    @staticmethod
    def join(mixtures: Sequence["RepeatMixture"]) -> "RepeatMixture":
        """Contexts side by side. Raises ValueError for `next_items`, which are made for all contexts at once."""
        if any(mixture.next_items is not None for mixture in mixtures):
            raise ValueError(
                "a mixture with next_items cannot be joined; join first, then add them"
            )
        if len(mixtures) == 1:
            return mixtures[0]
        longest = max(mixture.items.shape[1] for mixture in mixtures)

        def joined(tensors: Sequence[Tensor], padding: float) -> Tensor:
            missing = [longest - tensor.shape[1] for tensor in tensors]
            padded = [
                functional.pad(tensor, (0, num), value=padding)
                for tensor, num in zip(tensors, missing, strict=True)
            ]
            return torch.cat(padded)

        return RepeatMixture(
            torch.cat([mixture.log_generator for mixture in mixtures]),
            torch.cat([mixture.log_repeat for mixture in mixtures]),
            joined([mixture.items for mixture in mixtures], -1),
            joined([mixture.sids for mixture in mixtures], -1),
            joined([mixture.shares for mixture in mixtures], 0),
            joined([mixture.new for mixture in mixtures], False),
        )

    def favouring(self, config: RepeatConfig) -> "RepeatMixture":
        """As items are ranked: the generator counts less beside what was had, which is discounted behind the most probable candidates."""
        had_B = (~self.new & (self.shares > 0)).any(1)
        gate_B = self.log_repeat - self.log_generator - math.log(config.generator_weight) * had_B
        log_generator, log_repeat = functional.logsigmoid(-gate_B), functional.logsigmoid(gate_B)
        weighed = replace(self, log_generator=log_generator, log_repeat=log_repeat)
        return weighed._without_tail(config)

    def _without_tail(self, config: RepeatConfig) -> "RepeatMixture":
        most = config.max_favoured
        if self.shares.shape[1] <= most or config.tail_weight == 1:
            return self
        last_B1 = self.shares.topk(most, dim=1).values[:, -1:]
        full_BN = (self.shares >= last_B1) | self.new
        weighed_BN = self.shares * torch.where(full_BN, 1.0, config.tail_weight)
        return replace(self, shares=weighed_BN / weighed_BN.sum(1, keepdim=True).clamp(min=1e-30))

    def mix(self, log_generator_BT: Tensor, repeat_share_BT: Tensor) -> Tensor:
        """Log P from the log-probability and the repeat share of the same SIDs (or SID prefixes)."""
        return torch.logaddexp(
            self.log_generator[:, None] + log_generator_BT,
            self.log_repeat[:, None] + repeat_share_BT.clamp(min=1e-30).log(),
        )

    @cached_property
    def share_by_item(self) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
        """Per context the distinct candidates in order, and P_repeat of each."""
        found = []
        for items_N, shares_N in zip(self.items.numpy(), self.shares.numpy(), strict=True):
            known = items_N >= 0
            distinct, inverse = np.unique(items_N[known], return_inverse=True)
            totals = np.zeros(len(distinct))
            np.add.at(totals, inverse, shares_N[known])
            found.append((distinct, totals))
        return found

    @cached_property
    def share_by_sid(self) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
        """Per context the SIDs of the candidates in order, each as often as it is there, and their shares."""
        found = []
        for sids_N, shares_N in zip(self.sids.numpy(), self.shares.numpy(), strict=True):
            order = np.argsort(sids_N, kind="stable")
            order = order[np.searchsorted(sids_N, 0, sorter=order) :]
            found.append((sids_N[order], shares_N[order]))
        return found

    def share_of(self, sids_BT: Tensor) -> Tensor:
        """[B, T]: P_repeat of SIDs."""
        same_BTN = (sids_BT[..., None] == self.sids[:, None]).float()
        return (same_BTN @ self.shares[..., None])[..., 0]

    def share_of_nodes(self, nodes_BN: Tensor, num_nodes: int) -> Tensor:
        """[B, num_nodes]: P_repeat of every trie node of a level; `nodes` are the candidates' own."""
        total = self.shares.new_zeros(len(self.shares), num_nodes)
        return total.scatter_add_(1, nodes_BN, self.shares)


@dataclass(frozen=True)
class RepeatEvidence:
    """What some contexts say of their candidates, before it is known which of these may be recommended."""

    items: Tensor
    """[B, N]: as in RepeatCandidates."""
    sids: Tensor
    """[B, N]: as in RepeatCandidates."""
    scores: Tensor
    """[B, N]: s; anything in padding."""
    bias: Tensor
    """[B]: b"""
    new: Tensor
    """[B, N]: true where the history lacks the candidate."""

    def mixture(self, blocked_BN: Tensor | None = None) -> RepeatMixture:
        """Of the candidates that are not blocked. Contexts without any leave everything to the generator."""
        real_BN = self.items >= 0
        if blocked_BN is not None:
            real_BN = real_BN & ~blocked_BN
        scores_BN = self.scores.masked_fill(~real_BN, _NEVER)
        no_candidate_B = ~real_BN.any(-1)
        evidence_B = scores_BN.logsumexp(-1) if scores_BN.shape[1] else torch.zeros_like(self.bias)
        gate_B = (self.bias + evidence_B).masked_fill(no_candidate_B, _NEVER)
        return RepeatMixture(
            functional.logsigmoid(-gate_B),
            functional.logsigmoid(gate_B),
            self.items,
            self.sids,
            scores_BN.softmax(-1) * real_BN,
            self.new,
        )


class Repeats(nn.Module):
    """Scores of items that a user had or that are popular, and the gate."""

    item_counts: Tensor
    """[I, 7]: as in `set_item_counts`."""
    popularity: Tensor
    """[I]: as in RepeatCandidates, at the training's end."""
    feature_mean: Tensor
    feature_scale: Tensor
    vector_mean: Tensor
    """[H]: of the item table, by how often items are candidates."""

    def __init__(self, layer: LayerConfig, config: RepeatConfig, item_buckets: int) -> None:
        """Decayed counts, to begin with; `item_buckets` as in the item table, whose rows candidates are known by."""
        super().__init__()
        last = nn.Linear(config.hidden_width, 1)
        num_features = NUM_FEATURES + _NUM_ITEM_FEATURES + _NUM_SIMILARITIES
        self.register_buffer("item_counts", torch.zeros(item_buckets, NUM_ITEM_COUNTS))
        self.register_buffer("popularity", torch.zeros(item_buckets))
        self.register_buffer("feature_mean", torch.zeros(num_features))
        self.register_buffer("feature_scale", torch.ones(num_features))
        self.register_buffer("vector_mean", torch.zeros(layer.width))
        self.score = nn.Sequential(
            nn.Linear(num_features, config.hidden_width),
            nn.SiLU(),
            nn.Linear(config.hidden_width, config.hidden_width),
            nn.SiLU(),
            last,
        )
        self.item_score = nn.Embedding(item_buckets, 1)
        self.gate = nn.Linear(layer.width, 1)
        self.to_query = nn.Linear(layer.width, layer.width)
        for linear in (self.gate, self.to_query, last):
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)
        nn.init.zeros_(self.item_score.weight)
        nn.init.constant_(self.gate.bias, -_FIRST_LOG_SMOOTHING)

    def forward(
        self, candidates: RepeatCandidates, vectors_BNH: Tensor, bos_BH: Tensor
    ) -> RepeatEvidence:
        """From the candidates, their vectors in the item table, and the decoder's BOS state."""
        met_BN1 = vectors_BNH @ self.to_query(bos_BH)[..., None]
        scores_BN = (
            self.scores(candidates, vectors_BNH) + met_BN1[..., 0] / vectors_BNH.shape[-1] ** 0.5
        )
        return RepeatEvidence(
            candidates.items, candidates.sids, scores_BN, self.gate(bos_BH)[:, 0], candidates.new
        )

    def scores(self, candidates: RepeatCandidates, vectors_BNH: Tensor) -> Tensor:
        """[B, N]: what statistics and items say, whatever the context."""
        features = self.describe(candidates, vectors_BNH)
        return self.scores_of(features, candidates.features[..., STRENGTH], candidates.first_rows)

    def describe(self, candidates: RepeatCandidates, vectors_BNH: Tensor) -> Tensor:
        """[B, N, F + 12]: all that is known of candidates, standardised."""
        features = self._all_features(candidates, vectors_BNH)
        return (features - self.feature_mean) / self.feature_scale

    def scores_of(self, features_BNF: Tensor, strength_BN: Tensor, first_rows_BN: Tensor) -> Tensor:
        """[B, N]: of candidates that are described."""
        learned_BN = self.score(features_BNF)[..., 0] + self.item_score(first_rows_BN)[..., 0]
        return strength_BN + learned_BN

    def _all_features(self, candidates: RepeatCandidates, vectors_BNH: Tensor) -> Tensor:
        """[B, N, F + 12]: of user and item; of the item; how overdue it is by its own mean interval; `_similarities`.

        Of the item: share of buyers who returned; popularity over one, four and eight weeks, and now; buyers; mean interval.
        """
        counts = self.item_counts[candidates.first_rows]
        popularity = candidates.popularity
        if popularity is None:
            popularity = self.popularity[candidates.first_rows]
        buyers, returning, intervals, log_intervals = counts[..., :4].unbind(-1)
        interval = (log_intervals + _PRIOR_INTERVALS * _PRIOR_LOG_INTERVAL) / (
            intervals + _PRIOR_INTERVALS
        )
        overdue = (candidates.features[..., SINCE_LAST] - interval) * ~candidates.new
        of_item = torch.stack(
            [
                ((returning + _PRIOR_RETURNING) / (buyers + _PRIOR_BUYERS)).log(),
                *(counts[..., 4:] + _PRIOR_RECENT).log().unbind(-1),
                popularity.clamp(min=LEAST_COUNT).log(),
                (buyers + 1).log(),
                interval,
                overdue,
            ],
            -1,
        )
        similarities = self._similarities(candidates, vectors_BNH.detach())
        return torch.cat([candidates.features, of_item, similarities], -1)

    def _similarities(self, candidates: RepeatCandidates, vectors_BNH: Tensor) -> Tensor:
        """[B, N, 4], of items that the history lacks: cosine with the history's items, weighed by each decayed count.

        0 for those it holds: they are part of what they would be compared with.
        """
        had_BN1 = (candidates.real & ~candidates.new)[..., None]
        weights_BNK = candidates.features[..., :_NUM_SIMILARITIES].exp() * had_BN1
        centred_BNH = functional.normalize(vectors_BNH - self.vector_mean, dim=-1)
        tastes_BHK = functional.normalize(centred_BNH.mT @ weights_BNK, dim=1)
        return (centred_BNH @ tastes_BHK) * candidates.new[..., None]

    @torch.no_grad()
    def set_item_counts(self, rows: Tensor, counts: Tensor) -> None:
        """[R, 7], what training saw of items; those in one row are added up.

        Buyers, those who returned, intervals between visits, as often the logarithm of one and the user's mean interval in days, interactions of the
        last one, four and eight weeks.
        """
        self.item_counts.zero_().index_add_(0, rows, counts.float())

    @torch.no_grad()
    def standardise(self, candidates: RepeatCandidates, vectors_BNH: Tensor) -> None:
        """Fix the means of vectors, and the features' means and scales, by a sample of contexts."""
        if candidates.real.any():
            self.vector_mean.copy_(vectors_BNH[candidates.real].mean(0))
            features = self._all_features(candidates, vectors_BNH)[candidates.real]
            self.feature_mean.copy_(features.mean(0))
            self.feature_scale.copy_(features.std(0, correction=0).clamp(min=0.1))
