"""A small T5 (arXiv 1910.10683) over codes: encoder of a history's tokens, decoder of one SID, relative positions.

Unlike T5's, the encoder is causal from item to item: one pass over a window then serves every position in it, and an
epoch takes a fifth of the time. Shapes: B contexts, T tokens, S sequences to decode per context, D levels, P codes of a prefix, H heads, W width.
"""

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

_NUM_BUCKETS, _MAX_DISTANCE = 32, 128
_INITIAL_STD = 0.02


@dataclass(frozen=True, kw_only=True)
class TigerConfig:
    """Sizes of the network."""

    width: int = 128
    num_heads: int = 4
    ffn_width: int = 256
    num_layers: int = 2
    """Of the encoder, and as many of the decoder."""
    max_items: int = 20
    """Newest interactions of a history; each is a token per level."""
    dropout: float = 0.1


@dataclass(frozen=True)
class Encoded:
    """Histories as the decoder sees them."""

    memory_BTW: Tensor
    num_items_BS: Tensor
    """How many items each sequence to decode may look at; S may be 1 for all."""


class TigerNetwork(nn.Module):
    """Codes of the next item, level by level, from the codes of a history."""

    begins: Tensor
    """Of each level's codes in the table of tokens."""

    def __init__(self, config: TigerConfig, codebook_sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.config, self.num_levels = config, len(codebook_sizes)
        width = config.width
        self._begins = list(itertools.accumulate(codebook_sizes, initial=0))
        self.register_buffer("begins", torch.tensor(self._begins[:-1]))
        # Behind the codes: what a decoder begins with, and padding.
        self.tokens = nn.Embedding(self._begins[-1] + 2, width)
        self.encoder = nn.ModuleList(
            _Layer(config, crosses=False) for _ in range(config.num_layers)
        )
        self.decoder = nn.ModuleList(_Layer(config, crosses=True) for _ in range(config.num_layers))
        self.encoder_places = nn.Embedding(_NUM_BUCKETS, config.num_heads)
        self.decoder_places = nn.Embedding(_NUM_BUCKETS, config.num_heads)
        self.encoder_norm, self.decoder_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.dropout = nn.Dropout(config.dropout)
        nn.init.normal_(self.tokens.weight, std=width**-0.5)
        for linear in (module for module in self.modules() if isinstance(module, nn.Linear)):
            nn.init.normal_(linear.weight, std=_INITIAL_STD)

    def encode(self, codes_BLD: Tensor, num_items_BS: Tensor) -> Encoded:
        """Of items [B, L, D] padded on the right with -1; at least one position is looked at, be it padding."""
        codes = codes_BLD.flatten(1)
        levels = self.begins.repeat(codes_BLD.shape[1])
        tokens = (codes + levels).where(codes >= 0, self._begins[-1] + 1)
        places = torch.arange(codes.shape[1])
        items = places // self.num_levels
        bias = self._bias(self.encoder_places, places, items > items[:, None])
        hidden = self.dropout(self.tokens(tokens))
        for layer in self.encoder:
            hidden = layer(hidden, bias)
        return Encoded(self.dropout(self.encoder_norm(hidden)), num_items_BS.clamp(min=1))

    def decode(self, codes_BSP: Tensor, encoded: Encoded) -> Tensor:
        """Hidden [B, S, P + 1, W]: position p predicts the code of level p, knowing those before it."""
        batch, sequences, length = codes_BSP.shape
        tokens = codes_BSP + self.begins[:length]
        begin = tokens.new_full((batch, sequences, 1), self._begins[-1])
        hidden = self.dropout(self.tokens(torch.cat([begin, tokens], 2))).flatten(0, 1)
        places = torch.arange(length + 1)
        bias = self._bias(self.decoder_places, places, places > places[:, None])
        seen = encoded.num_items_BS.expand(-1, sequences).repeat_interleave(length + 1, 1)
        items = torch.arange(encoded.memory_BTW.shape[1]) // self.num_levels
        cross = _Cross(encoded.memory_BTW, items < seen[..., None])
        for layer in self.decoder:
            hidden = layer(hidden, bias, cross)
        hidden = self.dropout(self.decoder_norm(hidden))
        by_sequence: Tensor = hidden.view(batch, sequences, length + 1, -1)
        return by_sequence

    def _bias(self, table: nn.Module, places: Tensor, hidden: Tensor) -> Tensor:
        """[1, H, Q, K]."""
        bias: Tensor = table(_buckets(places - places[:, None])).permute(2, 0, 1)[None]
        return bias.masked_fill(hidden, -torch.inf)

    def logits(self, hidden: Tensor, level: int) -> Tensor:
        """Of the codes of `level`; they are scored by what embeds them."""
        table = self.tokens.weight[self._begins[level] : self._begins[level + 1]]
        scores: Tensor = hidden @ table.T
        return scores


@dataclass(frozen=True)
class _Cross:
    memory_BTW: Tensor
    mask_BQT: Tensor


class _Layer(nn.Module):
    """T5's: norms before, no biases, ReLU."""

    def __init__(self, config: TigerConfig, crosses: bool) -> None:
        super().__init__()
        width = config.width
        self._num_heads, self._ffn_width = config.num_heads, config.ffn_width
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(3 if crosses else 2))
        self.qkv, self.out = _linear(width, 3 * width), _linear(width, width)
        self.query = _linear(width, width) if crosses else None
        self.key_value = _linear(width, 2 * width) if crosses else None
        self.cross_out = _linear(width, width) if crosses else None
        self.ffn_in, self.ffn_out = _linear(width, config.ffn_width), _linear(config.ffn_width, width)  # fmt: skip
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor, bias: Tensor, cross: _Cross | None = None) -> Tensor:
        query, key, value = self._heads(self.qkv(self.norms[0](hidden)), 3)
        mixed = functional.scaled_dot_product_attention(query, key, value, bias.to(query.dtype))
        hidden = hidden + self.dropout(self.out(_joined(mixed)))
        if cross is not None:
            hidden = hidden + self.dropout(self._look_at(self.norms[2](hidden), cross))
        inner = self.dropout(functional.relu(self.ffn_in(self.norms[1](hidden))))
        result: Tensor = hidden + self.dropout(self.ffn_out(inner))
        return result

    def _look_at(self, hidden: Tensor, cross: _Cross) -> Tensor:
        """All sequences of a context look at it at once."""
        assert self.query is not None
        assert self.key_value is not None
        assert self.cross_out is not None
        batch = len(cross.memory_BTW)
        (query,) = self._heads(self.query(hidden).view(batch, -1, hidden.shape[-1]), 1)
        key, value = self._heads(self.key_value(cross.memory_BTW), 2)
        mask = cross.mask_BQT[:, None]
        mixed = functional.scaled_dot_product_attention(query, key, value, mask)
        joined: Tensor = self.cross_out(_joined(mixed))
        return joined.view(hidden.shape)

    def _heads(self, projected: Tensor, number: int) -> tuple[Tensor, ...]:
        batch, length, _ = projected.shape
        split = projected.view(batch, length, number, self._num_heads, -1)
        return split.permute(2, 0, 3, 1, 4).unbind(0)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def _joined(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(2)


def _buckets(distances: Tensor) -> Tensor:
    """T5's: one bucket each for the nearest, then logarithmic; half of them for what comes after."""
    half = _NUM_BUCKETS // 2
    exact = half // 2
    size = distances.abs()
    far = (size.clamp(min=1) / exact).log() / math.log(_MAX_DISTANCE / exact) * (half - exact)
    bucket = torch.where(size < exact, size, (exact + far.long()).clamp(max=half - 1))
    return bucket + half * (distances > 0)
