"""The recent stream: the newest interactions, in full detail, through self-attention.

Shapes: B contexts, R recent interactions, H width.
"""

import torch
from torch import Tensor, nn

from model.layers import EncoderLayer, LayerConfig, Segment


class RecentEncoder(nn.Module):
    """Item vectors + position encoding, then bidirectional self-attention layers (GEMs, recent stream).

    Positions count from the newest interaction, so that a history's growth does not move what is near.
    """

    def __init__(self, layer: LayerConfig, num_layers: int, max_len: int) -> None:
        """`max_len`: the recent segment's length."""
        super().__init__()
        self.positions_RH = nn.Parameter(torch.randn(max_len, layer.width) * 0.02)
        self.layers = nn.ModuleList(EncoderLayer(layer) for _ in range(num_layers))
        self.norm = nn.RMSNorm(layer.width)

    def forward(self, items_BRH: Tensor, mask_BR: Tensor) -> Segment:
        """Encode right-aligned items: the newest is last, padding comes first."""
        num_items = items_BRH.shape[1]
        x_BRH = items_BRH + self.positions_RH[:num_items].flip(0)
        for layer in self.layers:
            x_BRH = layer(x_BRH, mask_BR)
        return Segment(self.norm(x_BRH), mask_BR)
