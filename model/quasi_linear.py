"""Quasi-linear attention: one layer of the lifecycle stream, over sums instead of interactions.

Shapes: B contexts, N interactions, E queries, H width, A heads, C = H / A, R kept keys per query.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.accumulators import Accumulators, TopKeys, best_keys, exp_score
from model.layers import LayerConfig

Delta = Literal["self", "top_r", "none"]


class QuasiLinearAttention(nn.Module):
    """phi(Q e) phi(RMS(Z / n)) + delta, Z = sum_t phi(K x_t)^T (V x_t), phi = SiLU (GEMs, lifecycle; VISTA, QLA).

    K and V see one item at a time, so Z is a sum over items: chunks add, shards merge, a deletion subtracts. The state
    is normalised per head before the outer phi, which would otherwise make the length part of the model.

    delta `self` is each query's own term (VISTA). `top_r` gives the R best keys of each query their softmax weight
    instead of their linear one (sparse + low-rank, as in Scatterbrain). Which keys are best is decided with a static
    query, made of learnable parameters alone: a query that depends on what earlier layers read would choose other keys
    with every new chunk, and the choice would not add up.

    Starts as a copying device, as `Attention` does: the output projection undoes the value projection, so that what is
    read lies where items and codes lie from the first step on.
    """

    def __init__(self, layer: LayerConfig, delta: Delta, top_r: int) -> None:
        """Projections, per head; `top_r` keys are kept per query and head where delta says so."""
        super().__init__()
        self.delta, self.top_r, self.num_heads = delta, top_r, layer.num_heads
        width, head_width = layer.width, layer.width // layer.num_heads
        self.to_query = nn.Linear(width, width, bias=False)
        self.to_key = nn.Linear(width, width, bias=False)
        self.to_value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.state_norm = nn.RMSNorm((head_width, head_width), eps=1e-8)
        with torch.no_grad():
            nn.init.orthogonal_(self.to_value.weight)
            self.out.weight.copy_(0.5 * self.to_value.weight.T)

    def accumulate(
        self,
        x_BNH: Tensor,
        static_queries_EH: Tensor,
        mask_BN: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> Accumulators:
        """The sums over the real items. Projections are in the precision of `x_BNH`, sums in `dtype`, if given."""
        dtype = dtype or x_BNH.dtype
        key, value = self._split(self.to_key(x_BNH)), self._split(self.to_value(x_BNH)).to(dtype)
        mapped = functional.silu(key).to(dtype)
        if mask_BN is not None:
            mapped = mapped * mask_BN[:, None, :, None]
        top = None
        if self.delta == "top_r":
            key = key.to(dtype)
            scores = self._scores(key, static_queries_EH)
            if mask_BN is not None:
                scores = scores.masked_fill(~mask_BN[:, None, :, None], -torch.inf)
            top = best_keys(scores, key, value, self.top_r)
        return Accumulators(mapped.transpose(-1, -2) @ value, top)

    def scores(self, x_BNH: Tensor, static_queries_EH: Tensor) -> Tensor:
        """[B, A, N, E] float64: by these the best keys of each query are chosen."""
        return self._scores(self._split(self.to_key(x_BNH)).double(), static_queries_EH)

    def forward(self, queries_BEH: Tensor, sums: Accumulators, count_B: Tensor) -> Tensor:
        """[B, E, H]: read the sums over `count_B` items."""
        raw = self._split(self.to_query(queries_BEH))
        query = functional.silu(raw)
        scale = count_B.clamp(min=1).to(raw.dtype)[:, None, None, None]
        read = query @ functional.silu(self.state_norm(sums.state / scale))
        if self.delta == "self":
            own_key = functional.silu(self._split(self.to_key(queries_BEH)))
            own_value = self._split(self.to_value(queries_BEH))
            read = read + (query * own_key).sum(-1, keepdim=True) * own_value
        elif sums.top is not None:
            weights = _softmax_weights(raw, sums.top) - _linear_weights(query, sums.top) / scale
            read = read + (weights.unsqueeze(-2) @ sums.top.values).squeeze(-2)
        return self.out(read.transpose(1, 2).flatten(2))

    def _scores(self, key_BANC: Tensor, static_queries_EH: Tensor) -> Tensor:
        query = self._split(self.to_query(static_queries_EH)[None]).to(key_BANC.dtype)
        return key_BANC @ query.transpose(-1, -2) / key_BANC.shape[-1] ** 0.5

    def _split(self, x_BNH: Tensor) -> Tensor:
        head_width = x_BNH.shape[-1] // self.num_heads
        return x_BNH.view(*x_BNH.shape[:2], self.num_heads, head_width).transpose(1, 2)


def _softmax_weights(query_BAEC: Tensor, top: TopKeys) -> Tensor:
    """[B, A, E, R]: softmax over all items, at the kept ones. What the others weigh is taken from the static query."""
    kept = exp_score(top.scores)
    others = (top.mass - kept.sum(-1)).clamp(min=0)
    scores = (top.keys @ query_BAEC.unsqueeze(-1)).squeeze(-1) / query_BAEC.shape[-1] ** 0.5
    now = exp_score(scores.masked_fill(top.scores == -torch.inf, -torch.inf))
    return now / (now.sum(-1, keepdim=True) + others.unsqueeze(-1)).clamp(min=1e-30)


def _linear_weights(mapped_query_BAEC: Tensor, top: TopKeys) -> Tensor:
    """[B, A, E, R]: phi(q) phi(k)^T, 0 where nothing is kept."""
    weights = (functional.silu(top.keys) @ mapped_query_BAEC.unsqueeze(-1)).squeeze(-1)
    return weights.masked_fill(top.scores == -torch.inf, 0.0)
