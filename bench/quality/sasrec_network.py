"""SASRec (arXiv 1808.09781) as a pre-norm causal transformer over items; the item table embeds and scores.

Shapes: B windows, L positions, N items, W width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class SasrecConfig:
    """Sizes of the network."""

    width: int = 128
    num_blocks: int = 2
    num_heads: int = 2
    ffn_width: int = 256
    max_len: int = 50
    dropout: float = 0.4
    initial_std: float = 0.02
    """Of embeddings."""
    gap_buckets: int = 0
    """Embeddings of the time since the interaction before, by powers of two of hours; 0: none."""


class SasrecNetwork(nn.Module):
    """Hidden states of positions; a position knows itself and what is before it."""

    def __init__(self, config: SasrecConfig, num_items: int) -> None:
        super().__init__()
        self.config = config
        self.items = nn.Embedding(num_items + 1, config.width, padding_idx=num_items)
        self.places = nn.Embedding(config.max_len, config.width)
        self.gaps = nn.Embedding(max(1, config.gap_buckets), config.width)
        self.bias = nn.Parameter(torch.zeros(num_items))
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.num_blocks))
        self.norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)
        for table in (self.items, self.places, self.gaps):
            nn.init.trunc_normal_(table.weight, std=config.initial_std)

    def table(self) -> Tensor:
        """[N, W]."""
        return self.items.weight[:-1]

    def forward(self, items_BL: Tensor, hours_BL: Tensor) -> Tensor:
        """Hidden [B, L, W]; padding on the right is -1."""
        hidden = self.items(items_BL.where(items_BL >= 0, self.items.num_embeddings - 1))
        hidden = hidden + self.places.weight[: items_BL.shape[1]]
        if self.config.gap_buckets:
            hidden = hidden + self.gaps(self._gap_buckets(hours_BL))
        hidden = self.dropout(hidden)
        for block in self.blocks:
            hidden = block(hidden)
        normed: Tensor = self.norm(hidden)
        return normed

    def _gap_buckets(self, hours_BL: Tensor) -> Tensor:
        gaps = functional.pad(hours_BL.diff(dim=1), (1, 0)).clamp(min=0)
        return (1 + gaps).log2().long().clamp(max=self.config.gap_buckets - 1)

    def scores(self, hidden: Tensor) -> Tensor:
        """Of all items."""
        return hidden @ self.table().T + self.bias


class _Block(nn.Module):
    def __init__(self, config: SasrecConfig) -> None:
        super().__init__()
        width = config.width
        self._num_heads = config.num_heads
        self.norm_attention, self.norm_ffn = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ffn_in = nn.Linear(width, config.ffn_width)
        self.ffn_out = nn.Linear(config.ffn_width, width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        qkv = self.qkv(self.norm_attention(hidden))
        query, key, value = qkv.view(batch, length, 3, self._num_heads, -1).permute(2, 0, 3, 1, 4)
        # Padding is on the right, so that the causal mask alone hides it from all that counts.
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(batch, length, width)
        hidden = hidden + self.dropout(self.out(mixed))
        inner = self.dropout(functional.gelu(self.ffn_in(self.norm_ffn(hidden))))
        result: Tensor = hidden + self.dropout(self.ffn_out(inner))
        return result
