"""The lifecycle stream: everything older, compressed into a few tokens by additive quasi-linear attention.

Shapes: B contexts, N interactions, E queries (tokens), H width, L layers, A heads, C = H / A.
"""

from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor, nn

from model.accumulators import Accumulators, stack_layers
from model.errors import ModelConfigError
from model.layers import EncoderLayer, FeedForward, LayerConfig, Segment
from model.limits import check_limits
from model.quasi_linear import Delta, QuasiLinearAttention

_MAX_ENCODED = 2**16 - 1  # two bytes in the accumulators' header


@dataclass(frozen=True, kw_only=True)
class LifecycleConfig:
    """The lifecycle stream. Raises ModelConfigError for impossible sizes."""

    num_queries: int = 16
    num_layers: int = 2
    num_encoder_layers: int = 1
    delta: Delta = "self"
    """The term beside linear attention: each query's own (VISTA), the best keys' softmax weight, or none."""
    top_r: int = 4
    """Keys kept per query, head and layer where delta is `top_r`."""
    reconstruction_len: int = 32
    """Interactions the training-time decoder rebuilds."""

    def __post_init__(self) -> None:
        """Check sizes and names."""
        check_limits(self, "num_queries", "num_layers", "top_r", least=1, most=_MAX_ENCODED)
        check_limits(self, "num_encoder_layers", least=0)
        if self.delta not in get_args(Delta):
            raise ModelConfigError(
                f"delta is {self.delta!r}; it must be one of {', '.join(get_args(Delta))}"
            )
        if self.reconstruction_len < 2:
            raise ModelConfigError(
                f"reconstruction_len is {self.reconstruction_len}; it must be at least 2"
            )


class Lifecycle(nn.Module):
    """E learnable queries through stacked quasi-linear layers over raw item vectors; online, a light encoder."""

    def __init__(self, layer: LayerConfig, config: LifecycleConfig) -> None:
        """Queries, layers, the online encoder and the training-time decoder."""
        super().__init__()
        self.config = config
        self.queries_EH = nn.Parameter(torch.randn(config.num_queries, layer.width))
        self.attentions = nn.ModuleList(
            QuasiLinearAttention(layer, config.delta, config.top_r)
            for _ in range(config.num_layers)
        )
        self.norms = nn.ModuleList(nn.RMSNorm(layer.width) for _ in range(2 * config.num_layers))
        self.ffns = nn.ModuleList(FeedForward(layer) for _ in range(config.num_layers))
        self.encoder = nn.ModuleList(EncoderLayer(layer) for _ in range(config.num_encoder_layers))
        self.norm = nn.RMSNorm(layer.width)
        self.reconstruction = Reconstruction(layer)

    def accumulate(
        self, x_BNH: Tensor, mask_BN: Tensor | None = None, dtype: torch.dtype | None = None
    ) -> Accumulators:
        """The sums of every layer, [B, L, ...], over the real items; float64 sums of float32 items where `dtype` says so."""
        layers = [
            attention.accumulate(x_BNH, self._static_queries(i), mask_BN, dtype)
            for i, attention in enumerate(self._layers())
        ]
        return stack_layers(layers)

    def scores(self, x_BNH: Tensor) -> Tensor:
        """[B, L, A, N, E]: by these `top_r` keeps the best keys."""
        layers = enumerate(self._layers())
        return torch.stack([a.scores(x_BNH, self._static_queries(i)) for i, a in layers], 1)

    def tokens(self, sums: Accumulators, count_B: Tensor) -> Tensor:
        """[B, E, H]: what is cached per user. `count_B` is the number of items summed."""
        sums = sums.cast(self.queries_EH.dtype)
        x_BEH = self.queries_EH.expand(len(sums.state), -1, -1)
        for i, (attention, ffn) in enumerate(zip(self.attentions, self.ffns, strict=True)):
            x_BEH = x_BEH + attention(self.norms[2 * i](x_BEH), sums.layer(i), count_B)
            x_BEH = x_BEH + ffn(self.norms[2 * i + 1](x_BEH))
        return x_BEH

    def encode(self, tokens_BEH: Tensor, present_B: Tensor) -> Segment:
        """Cached tokens to the segment that the decoder attends to."""
        mask_BE = present_B[:, None].expand(-1, tokens_BEH.shape[1])
        for layer in self.encoder:
            tokens_BEH = layer(tokens_BEH, mask_BE)
        return Segment(self.norm(tokens_BEH), mask_BE)

    def reconstruction_loss(self, tokens_BEH: Tensor, older: Segment) -> Tensor:
        """How badly the tokens rebuild `reconstruction_len` items, evenly spread over each life; 0 where nobody has one."""
        if not older.mask.any():
            return tokens_BEH.new_zeros(())
        real_first = (~older.mask).long().argsort(dim=1, stable=True)
        counts = older.mask.sum(1, keepdim=True)
        taken = counts.clamp(max=self.config.reconstruction_len)
        columns = torch.arange(int(taken.max()), device=counts.device).expand(len(counts), -1)
        index = real_first.gather(
            1, columns.minimum(taken - 1).clamp(min=0) * counts // taken.clamp(min=1)
        )
        items = older.vectors.gather(1, index[..., None].expand(-1, -1, older.vectors.shape[-1]))
        return self.reconstruction.loss(tokens_BEH, items, columns < taken)

    def _layers(self) -> list[QuasiLinearAttention]:
        return list(self.attentions)  # type: ignore[arg-type]

    def _static_queries(self, layer: int) -> Tensor:
        """[E, H]: the layer's queries before anything of a user was read."""
        return self.norms[2 * layer](self.queries_EH)


class Reconstruction(nn.Module):
    """Training only: a causal decoder over [tokens, items] whose output at item i rebuilds item i + 1 (VISTA).

    "Without the softmax layer" is read as: the outputs are vectors, not a distribution over items.
    """

    def __init__(self, layer: LayerConfig) -> None:
        """One layer and an output projection."""
        super().__init__()
        self.decoder = EncoderLayer(layer)
        self.out = nn.Linear(layer.width, layer.width)

    def loss(self, tokens_BEH: Tensor, items_BNH: Tensor, mask_BN: Tensor) -> Tensor:
        """Off-by-one mean squared error, mean_i |v_i - u_(i+1)|^2 / H over the real pairs.

        Targets are detached: items that all become the same vector would be rebuilt without error.
        """
        num_tokens = tokens_BEH.shape[1]
        output = self.decoder(torch.cat([tokens_BEH, items_BNH], 1), None, causal=True)
        rebuilt = self.out(output[:, num_tokens:-1])
        real = (mask_BN[:, 1:] & mask_BN[:, :-1]).float()
        error = (rebuilt - items_BNH[:, 1:].detach()).square().mean(-1)
        return (error * real).sum() / real.sum().clamp(min=1)
