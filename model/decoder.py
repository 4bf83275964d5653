"""The multi-stream decoder: codes attend to themselves, then to three segments at once.

BOS sees only itself and the context, so all code sequences of a context share one BOS state: it is computed once.

Shapes: B contexts, T code sequences per context (targets or beams), P positions [BOS, codes], Q = 1 + T * (P - 1)
states [BOS, codes of sequence 1, codes of sequence 2, ...], H width, N keys of a segment, M mid-term keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.layers import Attention, FeedForward, LayerConfig, Segment
from model.mid_term import KEPT_AT, Indexer, MidTermConfig, kept_mass, teacher_from_logits

Residual = Literal["one", "literal"]


@dataclass(frozen=True)
class Context:
    """What one batch of requests attends to; all code sequences of a request share it."""

    recent: Segment
    mid_term: Segment
    lifecycle: Segment


@dataclass
class IndexerTrace:
    """What the indexers' training needs to know of one decoding pass: per block, filled by the pass."""

    losses: list[Tensor] = field(default_factory=list)
    kept: list[Tensor] = field(default_factory=list)
    """[B']: the attention mass that the block's own top-k keeps, for the contexts with a mid-term segment."""
    kept_at: list[Tensor] = field(default_factory=list)
    """[B', len(KEPT_AT)]: the same for other numbers of kept interactions."""

    def kept_by_top_k(self) -> dict[int, float]:
        """Mean kept attention mass over blocks and contexts for every k of KEPT_AT; empty without any context."""
        rows = [row for row in self.kept_at if len(row)]
        return dict(zip(KEPT_AT, torch.cat(rows).mean(0).tolist(), strict=True)) if rows else {}


class StreamBranch(nn.Module):
    """D_s - D' where D_s = D' + CrossAttn(D', H_s), then + FFN(RMSNorm(D_s)) (GEMs, multi-stream decoder)."""

    def __init__(self, layer: LayerConfig) -> None:
        """Norms, cross-attention and feed-forward of one stream in one block."""
        super().__init__()
        self.query_norm = nn.RMSNorm(layer.width)
        self.attention = Attention(layer)
        self.ffn_norm = nn.RMSNorm(layer.width)
        self.ffn = FeedForward(layer)
        self.dropout = nn.Dropout(layer.dropout)

    def forward(self, states_BQH: Tensor, segment: Segment) -> Tensor:
        """The branch's update [B, Q, H]; zero where the segment is absent."""
        attended = self.attention(self.query_norm(states_BQH), segment.vectors, segment.mask)
        update = attended + self.ffn(self.ffn_norm(states_BQH + attended))
        return self.dropout(update) * segment.present[:, None, None]

    def logits(self, states_BQH: Tensor, segment: Segment) -> Tensor:
        """[B, A, Q, N]: the attention's logits."""
        return self.attention.logits(self.query_norm(states_BQH), segment.vectors, segment.mask)


class DecoderBlock(nn.Module):
    """D' = causal self-attention, D = D' + the sum of the three branches' updates; no learned fusion.

    The "literal" residual is the sum of the three D_s as printed, which holds D' three times.
    """

    def __init__(self, layer: LayerConfig, mid_term: MidTermConfig, residual: Residual) -> None:
        """One branch per stream, and the indexer."""
        super().__init__()
        self.residual_weight = 3.0 if residual == "literal" else 1.0
        self.self_norm = nn.RMSNorm(layer.width)
        self.self_attention = Attention(layer)
        self.recent = StreamBranch(layer)
        self.mid_term = StreamBranch(layer)
        self.lifecycle = StreamBranch(layer)
        self.indexer = Indexer(layer, mid_term)

    def forward(
        self,
        states_BQH: Tensor,
        num_sequences: int,
        context: Context,
        *,
        select: bool,
        trace: IndexerTrace | None,
    ) -> Tensor:
        """[B, Q, H] to the same; `select` attends to the indexer's top-k, `trace` collects its losses."""
        sequences = as_sequences(self.self_norm(states_BQH), num_sequences).flatten(0, 1)
        attended = self.self_attention(sequences, sequences, None, causal=True)
        attended_BTPH = attended.view(len(states_BQH), num_sequences, *attended.shape[1:])
        states_BQH = states_BQH + share_bos(attended_BTPH)
        updates = {}
        if context.recent.vectors.shape[1]:
            updates["recent"] = self.recent(states_BQH, context.recent)
        if context.mid_term.vectors.shape[1]:
            selected = self._selected(states_BQH, context.mid_term, select, trace)
            updates["mid_term"] = self.mid_term(states_BQH, selected)
        if context.lifecycle.vectors.shape[1]:
            updates["lifecycle"] = self.lifecycle(states_BQH, context.lifecycle)
        return self.residual_weight * states_BQH + self.fuse(states_BQH, updates)

    def fuse(self, states_BQH: Tensor, updates: Mapping[str, Tensor]) -> Tensor:
        """[B, Q, H]: the streams' updates as one; absent streams have none."""
        return sum(updates.values(), torch.zeros_like(states_BQH))

    def _selected(
        self, states_BQH: Tensor, segment: Segment, select: bool, trace: IndexerTrace | None
    ) -> Segment:
        """The mid-term segment, cut down to the top-k when `select`; the BOS state (query 0) asks for all beams."""
        if trace is None and (not select or segment.mask.shape[1] <= self.indexer.config.top_k):
            return segment
        scores = self.indexer(self.indexer_query(states_BQH[:, 0]), segment.vectors)
        attended, attended_scores = segment, scores
        if select:
            attended_scores, attended = self.indexer.select(scores, segment)
        if trace is not None:
            with torch.no_grad():
                dense = self.mid_term.logits(states_BQH, segment)
                sparse = self.mid_term.logits(states_BQH, attended) if select else dense
                teacher = teacher_from_logits(sparse, self.indexer.config.teacher)
                attention = teacher_from_logits(dense, "mean_of_softmaxes")
                top_ks = (self.indexer.config.top_k, *KEPT_AT)
                kept = kept_mass(scores, attention, segment.mask, top_ks)
            trace.losses.append(self.indexer.loss(attended_scores, teacher, attended.mask))
            trace.kept.append(kept[:, 0])
            trace.kept_at.append(kept[:, 1:])
        return attended

    def indexer_query(self, bos_BH: Tensor) -> Tensor:
        """What the indexer is asked with: the BOS state after self-attention."""
        if self.residual_weight > 1:  # states that triple with every block would triple the scores
            return functional.rms_norm(bos_BH, bos_BH.shape[-1:])
        return bos_BH


class Decoder(nn.Module):
    """L blocks over [BOS, codes]."""

    def __init__(
        self, layer: LayerConfig, mid_term: MidTermConfig, num_blocks: int, residual: Residual
    ) -> None:
        """Blocks and the final norm."""
        super().__init__()
        self.blocks = nn.ModuleList(
            DecoderBlock(layer, mid_term, residual) for _ in range(num_blocks)
        )
        self.norm = nn.RMSNorm(layer.width)

    def forward(
        self, embedded_BTPH: Tensor, context: Context, *, select: bool, trace: IndexerTrace | None
    ) -> Tensor:
        """Embedded [BOS, codes] to states that predict the next code, [B, T, P, H]."""
        states_BQH, num_sequences = share_bos(embedded_BTPH), embedded_BTPH.shape[1]
        for block in self.blocks:
            states_BQH = block(states_BQH, num_sequences, context, select=select, trace=trace)
        return as_sequences(self.norm(states_BQH), num_sequences)


def share_bos(states_BTPH: Tensor) -> Tensor:
    """[B, Q, H]: BOS of the first sequence, which equals that of all, then the codes of every sequence."""
    return torch.cat([states_BTPH[:, 0, :1], states_BTPH[:, :, 1:].flatten(1, 2)], 1)


def as_sequences(states_BQH: Tensor, num_sequences: int) -> Tensor:
    """[B, T, P, H]: the inverse, BOS repeated for every sequence."""
    batch, num_states, width = states_BQH.shape
    num_codes = (num_states - 1) // num_sequences
    bos_BTPH = states_BQH[:, None, :1].expand(-1, num_sequences, -1, -1)
    codes_BTPH = states_BQH[:, 1:].reshape(batch, num_sequences, num_codes, width)
    return torch.cat([bos_BTPH, codes_BTPH], 2)
