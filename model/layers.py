"""Building blocks that every stream shares: feed-forward, attention with padding masks, a pre-norm encoder layer.

Shapes: B contexts, N keys, Q queries, H width, A heads, C = H / A.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.errors import ModelConfigError


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """The sizes that all layers share. Raises ModelConfigError when they do not fit together."""

    width: int = 64
    num_heads: int = 4
    ffn_width: int = 128
    dropout: float = 0.1
    """Of item vectors and of the decoder branches' updates, while training."""

    def __post_init__(self) -> None:
        """Check the sizes."""
        if min(self.width, self.num_heads, self.ffn_width) < 1 or self.width % self.num_heads:
            raise ModelConfigError(
                f"width is {self.width}, num_heads {self.num_heads}, ffn_width {self.ffn_width}; "
                "all must be at least 1 and width a multiple of num_heads"
            )
        if not 0 <= self.dropout < 1:
            raise ModelConfigError(f"dropout is {self.dropout}; it must be at least 0 and below 1")


@dataclass(frozen=True)
class Segment:
    """Encoded vectors of one segment and which of them are real; rows without any are absent."""

    vectors: Tensor
    """[B, N, H]"""
    mask: Tensor
    """[B, N], True = real"""

    @property
    def present(self) -> Tensor:
        """[B]: true where the segment holds anything."""
        return self.mask.any(-1)


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020): W_o (SiLU(W_g x) * W_u x)."""

    def __init__(self, config: LayerConfig) -> None:
        """Two inner projections in one matrix."""
        super().__init__()
        self.inner = nn.Linear(config.width, 2 * config.ffn_width, bias=False)
        self.outer = nn.Linear(config.ffn_width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] to [..., H]."""
        gate, up = self.inner(x).chunk(2, -1)
        return self.outer(functional.silu(gate) * up)


class Attention(nn.Module):
    """Multi-head softmax attention.

    Starts as a copying device: queries meet keys in one shared projection and the output projection undoes the value
    projection, so that a code's query finds the items it stands for from the first step on.
    """

    def __init__(self, config: LayerConfig) -> None:
        """Bias-free projections."""
        super().__init__()
        width = config.width
        self.num_heads = config.num_heads
        self.to_query = nn.Linear(width, width, bias=False)
        self.to_key_value = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        with torch.no_grad():
            nn.init.orthogonal_(self.to_query.weight)
            self.to_key_value.weight[:width] = self.to_query.weight
            nn.init.orthogonal_(self.to_key_value.weight[width:])
            self.out.weight.copy_(0.5 * self.to_key_value.weight[width:].T)

    def forward(
        self,
        queries_BQH: Tensor,
        keys_BNH: Tensor,
        mask_BN: Tensor | None,
        *,
        causal: bool = False,
        bias_AQN: Tensor | None = None,
    ) -> Tensor:
        """[B, Q, H]. Contexts without a single real key get arbitrary finite values: the caller drops them.

        `bias_AQN` is added to the logits. Raises ValueError where it comes without a mask.
        """
        if bias_AQN is not None and mask_BN is None:
            raise ValueError("a bias of the attention needs a mask")
        query = self._split(self.to_query(queries_BQH))
        key, value = map(self._split, self.to_key_value(keys_BNH).chunk(2, -1))
        mask = None if mask_BN is None else attendable(mask_BN)[:, None, None, :]
        if mask is not None and causal:
            mask = _causal(mask)
        if mask is not None and bias_AQN is not None:
            mixed = _biased_attention(query, key, value, bias_AQN, mask)
        else:
            mixed = functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=causal and mask is None
            )
        return self.out(mixed.transpose(1, 2).flatten(2))

    def logits(self, queries_BQH: Tensor, keys_BNH: Tensor, mask_BN: Tensor) -> Tensor:
        """[B, A, Q, N]: the logits whose softmax `forward` applies; -inf where masked."""
        query = self._split(self.to_query(queries_BQH))
        key = self._split(self.to_key_value(keys_BNH).chunk(2, -1)[0])
        scores = query @ key.transpose(-1, -2) / key.shape[-1] ** 0.5
        blocked = ~attendable(mask_BN)[:, None, None, :]
        return scores.masked_fill(blocked, -torch.inf)

    def _split(self, x_BNH: Tensor) -> Tensor:
        head_width = x_BNH.shape[-1] // self.num_heads
        return x_BNH.view(*x_BNH.shape[:2], self.num_heads, head_width).transpose(1, 2)


class EncoderLayer(nn.Module):
    """Pre-norm self-attention and feed-forward."""

    def __init__(self, config: LayerConfig, dropout: float = 0.0) -> None:
        """RMSNorm before each sub-layer; `dropout` of their updates."""
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.attention_norm = nn.RMSNorm(config.width)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.width)
        self.ffn = FeedForward(config)

    def forward(
        self,
        x_BNH: Tensor,
        mask_BN: Tensor | None,
        *,
        causal: bool = False,
        bias_ANN: Tensor | None = None,
    ) -> Tensor:
        """[B, N, H] to [B, N, H]; `bias_ANN` as in `Attention`."""
        normed = self.attention_norm(x_BNH)
        attended = self.attention(normed, normed, mask_BN, causal=causal, bias_AQN=bias_ANN)
        x_BNH = x_BNH + self.dropout(attended)
        return x_BNH + self.dropout(self.ffn(self.ffn_norm(x_BNH)))


def _biased_attention(
    query_BAQC: Tensor, key_BANC: Tensor, value_BANC: Tensor, bias_AQN: Tensor, mask: Tensor
) -> Tensor:
    """[B, A, Q, C]. PyTorch's own attention takes twice the time on a processor where its mask has a gradient."""
    bias = bias_AQN.to(query_BAQC.dtype).masked_fill(~mask, -torch.inf)
    query = query_BAQC * query_BAQC.shape[-1] ** -0.5
    logits = torch.baddbmm(
        bias.flatten(0, 1), query.flatten(0, 1), key_BANC.flatten(0, 1).transpose(1, 2)
    )
    wide = torch.promote_types(logits.dtype, torch.float32)
    shares = logits.softmax(-1, dtype=wide).to(value_BANC.dtype)
    return shares.view(bias.shape) @ value_BANC


def _causal(mask_B11N: Tensor) -> Tensor:
    """[B, 1, N, N]: of real keys, those up to the query; padding attends to itself, as softmax over nothing has no value."""
    num_keys = mask_B11N.shape[-1]
    itself = torch.eye(num_keys, dtype=torch.bool, device=mask_B11N.device)
    return mask_B11N.expand(-1, -1, num_keys, -1).tril() | itself


def attendable(mask_BN: Tensor) -> Tensor:
    """The mask, all True where it is all False: softmax over nothing has no value."""
    return mask_BN | ~mask_BN.any(-1, keepdim=True)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises ModelConfigError unless the setting `name` is one of its `choices`."""
    if value not in choices:
        raise ModelConfigError(f"{name} is {value!r}; it must be one of {', '.join(choices)}")
