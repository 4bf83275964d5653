"""The lifecycle stream: everything older, compressed into a few tokens by additive quasi-linear attention.

Shapes: B contexts, N interactions, E queries (tokens), H width, L layers, A heads, C = H / A.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.errors import ModelConfigError
from model.layers import EncoderLayer, FeedForward, LayerConfig, Segment


@dataclass(frozen=True, kw_only=True)
class LifecycleConfig:
    """The lifecycle stream. Raises ModelConfigError for impossible sizes."""

    num_queries: int = 16
    num_layers: int = 2
    num_encoder_layers: int = 1
    delta: Literal["self", "none"] = "self"
    """The term beside linear attention: each query's own (VISTA), or none."""
    reconstruction_len: int = 32
    """Interactions the training-time decoder rebuilds."""

    def __post_init__(self) -> None:
        """Check sizes and names."""
        if min(self.num_queries, self.num_layers) < 1 or self.num_encoder_layers < 0:
            raise ModelConfigError(
                f"num_queries is {self.num_queries} and num_layers {self.num_layers}: at least 1 each; "
                f"num_encoder_layers is {self.num_encoder_layers}: at least 0"
            )
        if self.delta not in ("self", "none"):
            raise ModelConfigError(f"delta is {self.delta!r}; it must be 'self' or 'none'")
        if self.reconstruction_len < 2:
            raise ModelConfigError(
                f"reconstruction_len is {self.reconstruction_len}; it must be at least 2"
            )


class QuasiLinearAttention(nn.Module):
    """phi(Q e) phi(RMS(Z / n)) + delta, Z = sum_t phi(K x_t)^T (V x_t), phi = SiLU (GEMs, lifecycle; VISTA, QLA).

    K and V see one item at a time, so Z is a sum over items: chunks add, shards merge, a deletion subtracts. The state
    is normalised per head before the outer phi, which would otherwise make the length part of the model.
    """

    def __init__(self, layer: LayerConfig, delta: str) -> None:
        """Projections, per head."""
        super().__init__()
        self.delta, self.num_heads = delta, layer.num_heads
        width, head_width = layer.width, layer.width // layer.num_heads
        self.to_query = nn.Linear(width, width, bias=False)
        self.to_key = nn.Linear(width, width, bias=False)
        self.to_value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.state_norm = nn.RMSNorm((head_width, head_width), eps=1e-8)

    def keys_values(self, x_BNH: Tensor) -> tuple[Tensor, Tensor]:
        """phi(K x) and V x, each [B, A, N, C]."""
        return functional.silu(self._split(self.to_key(x_BNH))), self._split(self.to_value(x_BNH))

    def forward(self, queries_BEH: Tensor, mean_state_BACC: Tensor) -> Tensor:
        """[B, E, H]: read the state Z / n."""
        query = functional.silu(self._split(self.to_query(queries_BEH)))
        read = query @ functional.silu(self.state_norm(mean_state_BACC))
        if self.delta == "self":
            own_key, own_value = self.keys_values(queries_BEH)
            read = read + (query * own_key).sum(-1, keepdim=True) * own_value
        return self.out(read.transpose(1, 2).flatten(2))

    def _split(self, x_BNH: Tensor) -> Tensor:
        head_width = x_BNH.shape[-1] // self.num_heads
        return x_BNH.view(*x_BNH.shape[:2], self.num_heads, head_width).transpose(1, 2)


class Lifecycle(nn.Module):
    """E learnable queries through stacked quasi-linear layers over raw item vectors; online, a light encoder."""

    def __init__(self, layer: LayerConfig, config: LifecycleConfig) -> None:
        """Queries, layers, the online encoder and the training-time decoder."""
        super().__init__()
        self.config = config
        self.queries_EH = nn.Parameter(torch.randn(config.num_queries, layer.width))
        self.attentions = nn.ModuleList(
            QuasiLinearAttention(layer, config.delta) for _ in range(config.num_layers)
        )
        self.norms = nn.ModuleList(nn.RMSNorm(layer.width) for _ in range(2 * config.num_layers))
        self.ffns = nn.ModuleList(FeedForward(layer) for _ in range(config.num_layers))
        self.encoder = nn.ModuleList(EncoderLayer(layer) for _ in range(config.num_encoder_layers))
        self.norm = nn.RMSNorm(layer.width)
        self.reconstruction = Reconstruction(layer)

    def accumulate(self, x_BNH: Tensor, mask_BN: Tensor) -> Tensor:
        """Z of every layer, [B, L, A, C, C], summed over the real items in the precision of `x_BNH`'s projections."""
        return torch.stack([self._state(a, x_BNH, mask_BN) for a in self.attentions], 1)

    def accumulate_exactly(self, x_NH: Tensor) -> Tensor:
        """Z of one chunk, [L, A, C, C], summed in float64."""
        states = []
        for attention in self.attentions:
            key, value = attention.keys_values(x_NH[None])  # type: ignore[operator]
            states.append((key.double().transpose(-1, -2) @ value.double())[0])
        return torch.stack(states)

    def tokens(self, state_BLACC: Tensor, count_B: Tensor) -> Tensor:
        """[B, E, H]: what is cached per user. `count_B` is the number of items summed in the state."""
        mean = (state_BLACC / count_B.clamp(min=1)[:, None, None, None, None]).float()
        x_BEH = self.queries_EH.expand(len(mean), -1, -1)
        for i, (attention, ffn) in enumerate(zip(self.attentions, self.ffns, strict=True)):
            x_BEH = x_BEH + attention(self.norms[2 * i](x_BEH), mean[:, i])
            x_BEH = x_BEH + ffn(self.norms[2 * i + 1](x_BEH))
        return x_BEH

    def encode(self, tokens_BEH: Tensor, present_B: Tensor) -> Segment:
        """Cached tokens to the segment that the decoder attends to."""
        mask_BE = present_B[:, None].expand(-1, tokens_BEH.shape[1])
        for layer in self.encoder:
            tokens_BEH = layer(tokens_BEH, mask_BE)
        return Segment(self.norm(tokens_BEH), mask_BE)

    @staticmethod
    def _state(attention: nn.Module, x_BNH: Tensor, mask_BN: Tensor) -> Tensor:
        key, value = attention.keys_values(x_BNH)  # type: ignore[operator]
        return (key * mask_BN[:, None, :, None]).transpose(-1, -2) @ value


class Reconstruction(nn.Module):
    """Training only: a causal decoder over [tokens, items] whose output at item i rebuilds item i + 1 (VISTA)."""

    def __init__(self, layer: LayerConfig) -> None:
        """One layer and an output projection."""
        super().__init__()
        self.decoder = EncoderLayer(layer)
        self.out = nn.Linear(layer.width, layer.width)

    def loss(self, tokens_BEH: Tensor, items_BNH: Tensor, mask_BN: Tensor) -> Tensor:
        """Off-by-one mean squared error, mean_i |v_i - u_(i+1)|^2 / H over the real pairs. Targets are detached."""
        num_tokens = tokens_BEH.shape[1]
        output = self.decoder(torch.cat([tokens_BEH, items_BNH], 1), None, causal=True)
        rebuilt = self.out(output[:, num_tokens:-1])
        real = (mask_BN[:, 1:] & mask_BN[:, :-1]).float()
        error = (rebuilt - items_BNH[:, 1:].detach()).square().mean(-1)
        return (error * real).sum() / real.sum().clamp(min=1)
