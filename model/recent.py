"""The recent stream: the newest interactions, in full detail, through self-attention.

Shapes: B contexts, R recent interactions, H width.
"""

import torch
from torch import Tensor, nn

from model.layers import EncoderLayer, LayerConfig, Segment


class RecentEncoder(nn.Module):
    """Item vectors + position encoding, then self-attention layers (GEMs, recent stream): bidirectional, or causal.

    Positions count from the newest interaction, so that a history's growth does not move what is near.
    """

    def __init__(
        self,
        layer: LayerConfig,
        num_layers: int,
        max_len: int,
        *,
        causal: bool = False,
        dropout: float = 0.0,
    ) -> None:
        """`max_len`: the recent segment's length; `dropout` of the layers' updates."""
        super().__init__()
        self.causal = causal
        self.positions_RH = nn.Parameter(torch.randn(max_len, layer.width) * 0.02)
        self.layers = nn.ModuleList(EncoderLayer(layer, dropout) for _ in range(num_layers))
        self.norm = nn.RMSNorm(layer.width)

    def forward(self, items_BRH: Tensor, mask_BR: Tensor) -> Segment:
        """Encode right-aligned items: the newest is last, padding comes first."""
        num_items = items_BRH.shape[1]
        x_BRH = items_BRH + self.positions_RH[:num_items].flip(0)
        for layer in self.layers:
            x_BRH = layer(x_BRH, mask_BR, causal=self.causal)
        return Segment(self.norm(x_BRH), mask_BR)
