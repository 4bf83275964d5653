"""The mid-term stream: a light encoder, and per decoder block an indexer that picks what is worth attending to.

Shapes: B contexts, M mid-term interactions, K selected, H width, G indexer heads, I indexer width.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from model.errors import ModelConfigError
from model.layers import EncoderLayer, LayerConfig, Segment


@dataclass(frozen=True, kw_only=True)
class MidTermConfig:
    """The mid-term stream. Raises ModelConfigError for impossible sizes."""

    num_layers: int = 1
    top_k: int = 128
    """Interactions kept per request and decoder block."""
    indexer_heads: int = 2
    indexer_width: int = 16
    divergence: Literal["teacher_first", "as_printed"] = "teacher_first"
    """KL(teacher || indexer), or the paper's printed KL(indexer || teacher)."""

    def __post_init__(self) -> None:
        """Check sizes and names."""
        if self.num_layers < 0 or min(self.top_k, self.indexer_heads, self.indexer_width) < 1:
            raise ModelConfigError(
                f"top_k is {self.top_k}, indexer_heads {self.indexer_heads}, indexer_width {self.indexer_width}: "
                f"at least 1 each; num_layers is {self.num_layers}: at least 0"
            )
        if self.divergence not in ("teacher_first", "as_printed"):
            raise ModelConfigError(
                f"divergence is {self.divergence!r}; it must be 'teacher_first' or 'as_printed'"
            )


class MidTermEncoder(nn.Module):
    """Light self-attention over item vectors; time is absolute, so encoded chunks stay valid as the history grows."""

    def __init__(self, layer: LayerConfig, config: MidTermConfig) -> None:
        """`config.num_layers` may be zero: the item vectors alone."""
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(layer) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(layer.width)

    def forward(self, items_BMH: Tensor, mask_BM: Tensor) -> Segment:
        """[B, M, H] to a segment of the same shape."""
        for layer in self.layers:
            items_BMH = layer(items_BMH, mask_BM)
        return Segment(self.norm(items_BMH), mask_BM)


class Indexer(nn.Module):
    """I = sum_h w_h (q_h . k_h) / sqrt(I) (GEMs after DeepSeek-V3.2, without the ReLU).

    The query is the request's BOS state, so that all beams share one selection. Inputs are detached: the indexer
    learns from its own loss only, and nothing else learns from that loss.
    """

    def __init__(self, layer: LayerConfig, config: MidTermConfig) -> None:
        """Projections of queries, keys and the gate."""
        super().__init__()
        self.config = config
        inner = config.indexer_heads * config.indexer_width
        self.to_query = nn.Linear(layer.width, inner, bias=False)
        self.to_key = nn.Linear(layer.width, inner, bias=False)
        self.to_gate = nn.Linear(layer.width, config.indexer_heads)

    def forward(self, query_BH: Tensor, keys_BMH: Tensor) -> Tensor:
        """[B, M] scores."""
        query_BH, keys_BMH = query_BH.detach(), keys_BMH.detach()
        query_BGI = self.to_query(query_BH).view(len(query_BH), self.config.indexer_heads, -1)
        gated_BGI = query_BGI * self.to_gate(query_BH)[..., None]
        scores_BM1 = self.to_key(keys_BMH) @ gated_BGI.flatten(1)[..., None]
        return scores_BM1[..., 0] / self.config.indexer_width**0.5

    def select(self, scores_BM: Tensor, segment: Segment) -> tuple[Tensor, Segment]:
        """The top-k by score: their scores [B, K] and the segment cut down to them."""
        scores_BM = scores_BM.masked_fill(~segment.mask, -torch.inf)
        chosen_BK = scores_BM.topk(min(self.config.top_k, scores_BM.shape[1]), dim=-1).indices
        vectors_BKH = segment.vectors.gather(
            1, chosen_BK[..., None].expand(-1, -1, segment.vectors.shape[-1])
        )
        return scores_BM.gather(1, chosen_BK), Segment(
            vectors_BKH, segment.mask.gather(1, chosen_BK)
        )

    def loss(self, scores_BM: Tensor, teacher_BM: Tensor, mask_BM: Tensor) -> Tensor:
        """Mean over the contexts that have a mid-term segment of the divergence from the (detached) teacher."""
        teacher_BM = teacher_BM.detach().clamp(min=1e-9)
        blocked = ~mask_BM
        log_index_BM = scores_BM.masked_fill(blocked, -1e9).log_softmax(-1)
        log_ratio_BM = teacher_BM.log() - log_index_BM
        if self.config.divergence == "teacher_first":
            terms_BM = teacher_BM * log_ratio_BM
        else:
            terms_BM = -log_index_BM.exp() * log_ratio_BM
        present_B = mask_BM.any(-1)
        total = terms_BM.masked_fill(blocked, 0.0).sum(-1)[present_B].sum()
        return total / present_B.sum().clamp(min=1)


def kept_mass(scores_BM: Tensor, teacher_BM: Tensor, mask_BM: Tensor, top_k: int) -> Tensor:
    """Share of the dense attention mass that the top-k of `scores` keeps, [B']: contexts with a mid-term segment."""
    chosen = (
        scores_BM.masked_fill(~mask_BM, -torch.inf).topk(min(top_k, scores_BM.shape[1])).indices
    )
    return teacher_BM.gather(1, chosen).sum(-1)[mask_BM.any(-1)]
