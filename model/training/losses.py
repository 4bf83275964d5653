"""The losses of a training step.

Shapes: B contexts, T targets, D levels, H width, K codes per level.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from model.decoder import Context, IndexerTrace
from model.layers import Segment
from model.mid_term import KEPT_AT
from model.network import Network
from model.training.batches import Batch
from model.training.next_item_loss import next_item_loss
from model.trie import Trie

Stage = Literal["dense", "indexer", "selection"]


@dataclass(frozen=True)
class Losses:
    """One batch's losses; `kept` is the attention mass that top-k keeps, NaN when not measured."""

    next_token: Tensor
    repeats: Tensor
    reconstruction: Tensor
    indexer: Tensor
    next_item: Tensor
    """Of the items that followed, scored beside codes; 0 where the network scores none."""
    kept: float
    kept_at: tuple[float, ...] = ()
    """As `kept_sums`."""

    def total(
        self, reconstruction_weight: float, repeat_weight: float, next_item_weight: float = 1.0
    ) -> Tensor:
        """The step's objective; the indexer's loss shares no weights with the others, so lambda = 1 couples nothing."""
        weighted = reconstruction_weight * self.reconstruction + repeat_weight * self.repeats
        return self.next_token + weighted + self.indexer + next_item_weight * self.next_item


def encode_batch(network: Network, batch: Batch) -> tuple[Context, Tensor]:
    """The context of a batch, lifecycle compressed from raw rows, and the reconstruction loss."""
    vectors = torch.split(network.features(batch.items), batch.lengths, 1)
    masks = torch.split(batch.mask, batch.lengths, 1)
    older, mid_term, recent = map(Segment, vectors, masks)
    lifecycle, present = network.lifecycle, older.present
    tokens = lifecycle.tokens(lifecycle.accumulate(older.vectors, older.mask), older.mask.sum(1))
    context = network.encode(recent, mid_term, tokens, present)
    return context, lifecycle.reconstruction_loss(tokens, older)


def batch_losses(network: Network, trie: Trie, batch: Batch, stage: Stage) -> Losses:
    """All losses of a batch in one stage."""
    context, reconstruction = encode_batch(network, batch)
    trace = None if stage == "dense" else IndexerTrace()
    next_token, repeats = next_token_loss(network, trie, context, batch, stage, trace)
    indexer, kept, kept_at = next_token.new_zeros(()), float("nan"), list[float]()
    if trace is not None and trace.losses:
        indexer = torch.stack(trace.losses).sum()
        kept = float(torch.cat(trace.kept).mean())
        kept_at = kept_sums(trace, batch)
    next_item = next_item_loss(network, context.recent, batch)
    return Losses(next_token, repeats, reconstruction, indexer, next_item, kept, tuple(kept_at))


def item_losses(network: Network, batch: Batch) -> Losses:
    """Of a batch of recent interactions alone: what items scored beside codes learn; all others are 0."""
    recent = network.recent(network.features(batch.items), batch.mask)
    next_item = next_item_loss(network, recent, batch)
    nothing = torch.zeros_like(next_item)
    return Losses(nothing, nothing, nothing, nothing, next_item, float("nan"))


def kept_sums(trace: IndexerTrace, batch: Batch) -> list[float]:
    """Attention mass that each k of KEPT_AT keeps, summed over contexts and blocks, then of how many these are.

    Of none where no mid-term segment of the batch is longer than k.
    """
    kept = torch.cat(trace.kept_at) if trace.kept_at else torch.zeros(0, len(KEPT_AT))
    longer = [float(batch.lengths[1] > k) for k in KEPT_AT]
    sums = [mass * some for mass, some in zip(kept.sum(0).tolist(), longer, strict=True)]
    return sums + [len(kept) * some for some in longer]


def next_token_loss(
    network: Network,
    trie: Trie,
    context: Context,
    batch: Batch,
    stage: Stage,
    trace: IndexerTrace | None = None,
) -> tuple[Tensor, Tensor]:
    """-log P(SID | context), generator and repeats mixed, weighted so that every basket counts once; `repeat_loss`."""
    paths_BTD = trie.paths_SD[batch.target_sids]
    codes_BTD = trie.codes_of(batch.target_sids)
    states = network.decode(context, codes_BTD[..., :-1], select=stage == "selection", trace=trace)
    log_prob = torch.zeros_like(batch.target_weights)
    parents = torch.zeros_like(batch.target_sids)
    trie = trie.at(batch.moments)
    for level in range(trie.num_levels):
        logits = network.next_logits(states[:, :, level], level, batch.code_counts)
        children = paths_BTD[..., level]
        log_prob = log_prob + trie.child_log_prob(level, parents, children, logits)
        parents = children
    mixture = network.repeat_mixture(batch.repeats, states)
    log_prob = mixture.mix(log_prob, mixture.share_of(batch.target_sids))
    loss = -(log_prob * batch.target_weights).sum() / batch.target_weights.sum().clamp(min=1e-6)
    return loss, repeat_loss(mixture.shares, batch.repeat_weights)


def repeat_loss(shares_BN: Tensor, weights_BN: Tensor) -> Tensor:
    """Listwise: -log P_repeat of the next basket's candidates by what each is worth; ranks them whatever the gate."""
    return listwise_loss(shares_BN.clamp(min=1e-30).log(), weights_BN)


def listwise_loss(log_shares_BN: Tensor, weights_BN: Tensor) -> Tensor:
    """The same, of logarithms."""
    return -(log_shares_BN * weights_BN).sum() / len(weights_BN)
