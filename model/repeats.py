"""Repeats: the probability that a user takes again what is in the history, beside the generator's own.

P(SID) = (1 - g) P_generator(SID) + g P_repeat(SID). P_repeat is a softmax over the mid-term and recent interactions of a
learned score s: how long ago, how often, how the BOS state meets the encoded interaction. The gate weighs that evidence
against the generator, g / (1 - g) = e^b sum_i e^s_i with b from the BOS state: with all s = 0, counts smoothed by e^-b
draws from the generator. (A pointer-generator after See et al. 2017, over SIDs.)

Shapes: B contexts, N interactions, T targets, S SIDs, H width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from model.catalogue import Catalogue
from model.layers import LayerConfig
from state.interaction import Rows

_NUM_BUCKETS = 48
_BUCKETS_PER_OCTAVE = 2
_DAY_MS = 86_400_000
_NEVER = -1e9
_FIRST_LOG_SMOOTHING = 4.6  # the generator weighs as much as a hundred interactions
NUM_STATISTICS = 3


@dataclass(frozen=True)
class RepeatRows:
    """The interactions of some contexts as candidates for repetition."""

    items: Tensor
    """[B, N]: catalogue indices; -1 for items outside the catalogue and padding."""
    sids: Tensor
    """[B, N]: their SID numbers, or -1."""
    buckets: Tensor
    """[B, N, 3]: log-buckets of rank from the newest, days before the newest, occurrences of the item."""


def repeat_rows(
    contexts: Sequence[tuple[Rows, npt.NDArray[np.int64]]],
    mask_BN: npt.NDArray[np.bool_],
    catalogue: Catalogue,
) -> RepeatRows:
    """From each context's interactions, oldest first, and their catalogue indices; `mask` says where they go."""
    items = np.full(mask_BN.shape, -1)
    buckets = np.zeros((*mask_BN.shape, NUM_STATISTICS), np.int64)
    for i, (rows, row_items) in enumerate(contexts):
        if len(rows):
            items[i, mask_BN[i]] = row_items
            buckets[i, mask_BN[i]] = _statistics(rows)
    sids = np.where(items >= 0, catalogue.bucket_of_item[items], -1)
    return RepeatRows(*map(torch.from_numpy, (items, sids, buckets)))


def _statistics(rows: Rows) -> npt.NDArray[np.int64]:
    times = rows["event_time_ms"]
    _, item, counts = np.unique(rows["item_id"], return_inverse=True, return_counts=True)
    raw = np.stack(
        [np.arange(len(rows))[::-1], (times[-1] - times).clip(min=0) / _DAY_MS, counts[item] - 1],
        -1,
    )
    return (
        np.ceil(np.log2(1 + raw) * _BUCKETS_PER_OCTAVE).astype(np.int64).clip(max=_NUM_BUCKETS - 1)
    )


@dataclass(frozen=True)
class RepeatMixture:
    """What the gate and the scores say of some contexts."""

    log_generator: Tensor
    """[B]: log (1 - g)"""
    log_repeat: Tensor
    """[B]: log g"""
    items: Tensor
    """[B, N]: as in RepeatRows."""
    sids: Tensor
    """[B, N]: as in RepeatRows."""
    shares: Tensor
    """[B, N]: P_repeat of each interaction; they sum to one where there is any candidate."""

    def mix(self, log_generator_BT: Tensor, repeat_share_BT: Tensor) -> Tensor:
        """Log P from the log-probability and the repeat share of the same SIDs (or SID prefixes)."""
        return torch.logaddexp(
            self.log_generator[:, None] + log_generator_BT,
            self.log_repeat[:, None] + repeat_share_BT.clamp(min=1e-30).log(),
        )

    def share_of(self, sids_BT: Tensor) -> Tensor:
        """[B, T]: P_repeat of SIDs."""
        same_BTN = (sids_BT[..., None] == self.sids[:, None]).float()
        return (same_BTN @ self.shares[..., None])[..., 0]

    def share_of_nodes(self, row_nodes_BN: Tensor, num_nodes: int) -> Tensor:
        """[B, num_nodes]: P_repeat of every trie node of a level; `row_nodes` are the interactions' own."""
        total = self.shares.new_zeros(len(self.shares), num_nodes)
        return total.scatter_add_(1, row_nodes_BN, self.shares)


class Repeats(nn.Module):
    """Scores of interactions, one learned number per bucket of each statistic, and the gate."""

    def __init__(self, layer: LayerConfig) -> None:
        """All interactions alike, to begin with: smoothed counts."""
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(NUM_STATISTICS, _NUM_BUCKETS))
        self.gate = nn.Linear(layer.width, 1)
        self.to_query = nn.Linear(layer.width, layer.width)
        for linear in (self.gate, self.to_query):
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)
        nn.init.constant_(self.gate.bias, -_FIRST_LOG_SMOOTHING)

    def forward(self, rows: RepeatRows, vectors_BNH: Tensor, bos_BH: Tensor) -> RepeatMixture:
        """From the candidates, their encoded vectors and the decoder's BOS state.

        Contexts without candidates leave everything to the generator.
        """
        candidate_BN = rows.sids >= 0
        scores_BN = self.scores[torch.arange(NUM_STATISTICS), rows.buckets].sum(-1)
        met_BN1 = vectors_BNH @ self.to_query(bos_BH)[..., None]
        scores_BN = scores_BN + met_BN1[..., 0] / vectors_BNH.shape[-1] ** 0.5
        shares_BN = scores_BN.masked_fill(~candidate_BN, _NEVER).softmax(-1) * candidate_BN
        evidence_B = scores_BN.masked_fill(~candidate_BN, _NEVER).logsumexp(-1)
        gate_B = (self.gate(bos_BH)[:, 0] + evidence_B).clamp(min=_NEVER)
        return RepeatMixture(
            functional.logsigmoid(-gate_B),
            functional.logsigmoid(gate_B),
            rows.items,
            rows.sids,
            shares_BN,
        )
