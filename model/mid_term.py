"""The mid-term stream: a light encoder, and per decoder block an indexer that picks what is worth attending to.

Shapes: B contexts, M mid-term interactions, K selected, H width, G indexer heads, I indexer width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.layers import EncoderLayer, LayerConfig, Segment, check_choice
from model.limits import check_limits

KEPT_AT = (64, 128, 256, 512, 1024)
"""Numbers of kept interactions at which training reports the attention mass."""

Teacher = Literal["mean_of_softmaxes", "softmax_of_sums"]
Divergence = Literal["teacher_first", "indexer_first"]


@dataclass(frozen=True, kw_only=True)
class MidTermConfig:
    """The mid-term stream. Raises ModelConfigError for impossible sizes and unknown names."""

    num_layers: int = 1
    top_k: int = 128
    """Interactions kept per request and decoder block."""
    indexer_heads: int = 2
    indexer_width: int = 16
    indexer_relu: bool = False
    """ReLU of every head's score before the gate, as in DeepSeek-V3.2; without it all heads are one inner product."""
    teacher: Teacher = "mean_of_softmaxes"
    """What the indexer imitates: the mass that the heads attend with, or the paper's softmax of their summed logits."""
    divergence: Divergence = "teacher_first"
    """KL(teacher || indexer), or the paper's printed KL(indexer || teacher)."""

    def __post_init__(self) -> None:
        """Check sizes and names."""
        check_limits(self, "top_k", "indexer_heads", "indexer_width", least=1)
        check_limits(self, "num_layers", least=0)
        check_choice("teacher", self.teacher, get_args(Teacher))
        check_choice("divergence", self.divergence, get_args(Divergence))


class MidTermEncoder(nn.Module):
    """Light self-attention over the item vectors of each chunk; time is absolute and items meet those of their own chunk.

    So what is encoded of a sealed chunk stays valid as the history grows, and the cost is linear in the segment.
    """

    def __init__(self, layer: LayerConfig, config: MidTermConfig, chunk_len: int) -> None:
        """`config.num_layers` may be zero: the item vectors alone. `chunk_len` is the history's."""
        super().__init__()
        self.chunk_len = chunk_len
        self.layers = nn.ModuleList(EncoderLayer(layer) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(layer.width)

    def forward(self, items_BMH: Tensor, mask_BM: Tensor) -> Segment:
        """[B, M, H] to a segment of the same shape. The segment begins with a chunk: items are left-aligned."""
        num_items = items_BMH.shape[1]
        if self.layers and num_items:
            chunk_len = min(self.chunk_len, num_items)
            missing = -num_items % chunk_len
            padded_BMH = functional.pad(items_BMH, (0, 0, 0, missing))
            mask_CN = functional.pad(mask_BM, (0, missing)).view(-1, chunk_len)
            chunks_CNH = padded_BMH.reshape(-1, chunk_len, items_BMH.shape[-1])
            encoded_CNH = self.encode_chunks(chunks_CNH, mask_CN)
            items_BMH = encoded_CNH.view(padded_BMH.shape)[:, :num_items]
        return Segment(self.norm(items_BMH), mask_BM)

    def encode_chunks(self, items_CNH: Tensor, mask_CN: Tensor) -> Tensor:
        """Chunks [C, N, H] to the same, before the norm."""
        for layer in self.layers:
            items_CNH = layer(items_CNH, mask_CN)
        return items_CNH


class Indexer(nn.Module):
    """I = sum_h w_h (q_h . k_h) / sqrt(I) (GEMs after DeepSeek-V3.2, whose ReLU of q_h . k_h is an option).

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
        return self.score(query_BH, self.keys(keys_BMH))

    def keys(self, keys_BMH: Tensor) -> Tensor:
        """[B, M, G I]: what is compared with queries; depends on the key alone."""
        projected: Tensor = self.to_key(keys_BMH.detach())
        return projected

    def score(self, query_BH: Tensor, keys_BMP: Tensor) -> Tensor:
        """[B, M] scores of projected keys."""
        query_BH = query_BH.detach()
        heads, width = self.config.indexer_heads, self.config.indexer_width
        query_BGI = self.to_query(query_BH).view(-1, heads, width) / width**0.5
        gate_BG = self.to_gate(query_BH)
        if not self.config.indexer_relu:  # linear in every head's score: one inner product
            gated_BGI = query_BGI * gate_BG[..., None]
            return (keys_BMP @ gated_BGI.flatten(1)[..., None])[..., 0]
        keys_BMGI = keys_BMP.view(*keys_BMP.shape[:2], heads, width)
        met_BMG = torch.einsum("bmgi,bgi->bmg", keys_BMGI, query_BGI)
        return (met_BMG.relu() @ gate_BG[..., None])[..., 0]

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


def teacher_from_logits(logits_BAQM: Tensor, teacher: Teacher) -> Tensor:
    """[B, M]: what the indexer imitates, from the dense attention's masked logits; the mean over all queries."""
    if teacher == "mean_of_softmaxes":
        return logits_BAQM.softmax(-1).mean((1, 2))
    return logits_BAQM.sum(1).softmax(-1).mean(1)


def kept_mass(
    scores_BM: Tensor, attention_BM: Tensor, mask_BM: Tensor, top_ks: Sequence[int]
) -> Tensor:
    """Share of the dense attention mass that the top-k of `scores` keeps, for every k.

    [B', len(top_ks)]: B' are the contexts with a mid-term segment. `attention` is the mean of the heads' softmaxes,
    whatever the indexer's teacher: it is what sparse attention gives up.
    """
    present_B, most = mask_BM.any(-1), scores_BM.shape[1]
    scores_BM = scores_BM.masked_fill(~mask_BM, -torch.inf)
    best_BK = scores_BM.topk(min(max(top_ks), most)).indices
    kept_BK = attention_BM.gather(1, best_BK).cumsum(-1)
    return kept_BK[:, [min(k, most) - 1 for k in top_ks]][present_B]
