"""The recent stream: the newest interactions, in full detail, through self-attention.

Shapes: B contexts, R recent interactions, H width, L layers, A heads.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from model.layers import EncoderLayer, LayerConfig, Segment

Positions = Literal["newest", "distance"]


class RecentEncoder(nn.Module):
    """Item vectors and where they stand, then self-attention layers (GEMs, recent stream): bidirectional, or causal.

    "newest": a learned vector per distance from the newest interaction, so that a history's growth does not move what is
    near. "distance": a learned number per layer, head and distance of two interactions, added to their attention's logit
    (Shaw et al., arXiv 1803.02155; HSTU, arXiv 2402.17152): a state is the same wherever it stands, so that in a causal
    stream every position learns for the newest.
    """

    def __init__(
        self,
        layer: LayerConfig,
        num_layers: int,
        max_len: int,
        *,
        causal: bool = False,
        dropout: float = 0.0,
        positions: Positions = "newest",
    ) -> None:
        """`max_len`: the recent segment's length; `dropout` of the layers' updates."""
        super().__init__()
        self.causal = causal
        self.positions_RH = self.distances_LAR = None
        if positions == "newest":
            self.positions_RH = nn.Parameter(torch.randn(max_len, layer.width) * 0.02)
        else:
            # Of -R + 1 to R - 1 a causal stream meets those from 0 on.
            num_distances = max_len if causal else 2 * max_len - 1
            self.distances_LAR = nn.Parameter(
                torch.zeros(num_layers, layer.num_heads, num_distances)
            )
        self.layers = nn.ModuleList(EncoderLayer(layer, dropout) for _ in range(num_layers))
        self.norm = nn.RMSNorm(layer.width)

    def forward(self, items_BRH: Tensor, mask_BR: Tensor) -> Segment:
        """Encode right-aligned items: the newest is last, padding comes first."""
        num_items = items_BRH.shape[1]
        x_BRH = items_BRH
        if self.positions_RH is not None:
            x_BRH = x_BRH + self.positions_RH[:num_items].flip(0)
        for i, layer in enumerate(self.layers):
            x_BRH = layer(x_BRH, mask_BR, causal=self.causal, bias_ANN=self._bias(i, num_items))
        return Segment(self.norm(x_BRH), mask_BR)

    def _bias(self, layer: int, num_items: int) -> Tensor | None:
        """[A, R, R]: by how far the second interaction is before the first; negative distances stand at the end."""
        if self.distances_LAR is None:
            return None
        places = torch.arange(num_items, device=self.distances_LAR.device)
        distances_RR = places[:, None] - places
        if self.causal:
            distances_RR = distances_RR.clamp(min=0)
        return self.distances_LAR[layer][:, distances_RR]
