"""What the lifecycle segment is summed up in: quantities that add, so that chunks, shards and deletions compose.

Shapes: ... leading dimensions, A heads, C head width, E queries, R kept keys per query, N interactions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_SCORE = 30.0
"""Scores are clamped to +- this before exp, so that 100,000 of them add up in float32, too."""


@dataclass(frozen=True)
class TopKeys:
    """Per query: the mass of the softmax over all keys, and the R keys of the highest scores."""

    mass: Tensor
    """[..., A, E]: sum over all interactions of exp(score)."""
    scores: Tensor
    """[..., A, E, R], highest first; -inf where there are fewer than R interactions."""
    keys: Tensor
    """[..., A, E, R, C]"""
    values: Tensor
    """[..., A, E, R, C]"""

    def merged(self, other: "TopKeys") -> "TopKeys":
        """The best of both. Equal scores belong to equal keys, so it does not matter which of them stays."""
        scores = torch.cat([self.scores, other.scores], -1)
        keys = torch.cat([self.keys, other.keys], -2)
        values = torch.cat([self.values, other.values], -2)
        best = scores.topk(self.scores.shape[-1])
        return TopKeys(
            self.mass + other.mass,
            best.values,
            _gather(keys, best.indices),
            _gather(values, best.indices),
        )

    def may_keep(self, scores_ANE: Tensor, tolerance: float) -> Tensor:
        """[N]: whether an interaction of these scores is in any kept set, or too close to its end to tell."""
        lowest = self.scores[..., -1]
        margin = tolerance * (1 + lowest.abs())
        return (scores_ANE >= (lowest - margin).unsqueeze(-2)).movedim(-2, 0).flatten(1).any(1)


@dataclass(frozen=True)
class Accumulators:
    """The additive state of one layer, or of all layers stacked."""

    state: Tensor
    """[..., A, C, C]: Z = sum_t phi(K x_t)^T (V x_t)"""
    top: TopKeys | None
    """None unless delta is `top_r`."""

    def __add__(self, other: "Accumulators") -> "Accumulators":
        """Of two disjoint sets of interactions to that of their union."""
        top = self.top.merged(other.top) if self.top and other.top else None
        return Accumulators(self.state + other.state, top)

    def tensors(self) -> tuple[Tensor, ...]:
        """All of it; `from_tensors` is the inverse."""
        top = self.top
        return (self.state, top.mass, top.scores, top.keys, top.values) if top else (self.state,)

    def layer(self, index: int) -> "Accumulators":
        """One layer of [B, L, ...]."""
        return from_tensors([tensor[:, index] for tensor in self.tensors()])

    def cast(self, dtype: torch.dtype) -> "Accumulators":
        """In another precision."""
        return from_tensors([tensor.to(dtype) for tensor in self.tensors()])


def from_tensors(tensors: Sequence[Tensor]) -> Accumulators:
    """Inverse of `Accumulators.tensors`."""
    state, *top = tensors
    return Accumulators(state, TopKeys(*top) if top else None)


def stack_layers(layers: Sequence[Accumulators]) -> Accumulators:
    """L times [B, ...] to [B, L, ...]."""
    parts = zip(*(layer.tensors() for layer in layers), strict=True)
    return from_tensors([torch.stack(part, 1) for part in parts])


def best_keys(
    scores_BANE: Tensor, keys_BANC: Tensor, values_BANC: Tensor, num_kept: int
) -> TopKeys:
    """The top keys of interactions with these scores; -inf marks padding."""
    mass = exp_score(scores_BANE).sum(-2)
    missing = max(0, num_kept - scores_BANE.shape[-2])
    scores_BAEN = torch.nn.functional.pad(
        scores_BANE.transpose(-1, -2), (0, missing), value=-torch.inf
    )
    best = scores_BAEN.topk(num_kept)
    index = best.indices.clamp(max=max(0, scores_BANE.shape[-2] - 1))
    keys, values = (
        torch.nn.functional.pad(x, (0, 0, 0, int(x.shape[-2] == 0)))
        .unsqueeze(-3)
        .expand(*scores_BAEN.shape[:-1], -1, -1)
        for x in (keys_BANC, values_BANC)
    )
    return TopKeys(mass, best.values, _gather(keys, index), _gather(values, index))


def exp_score(scores: Tensor) -> Tensor:
    """The exponential of the clamped score; 0 for -inf."""
    return scores.clamp(-MAX_SCORE, MAX_SCORE).exp() * (scores > -torch.inf)


def _gather(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(-2, index.unsqueeze(-1).expand(*index.shape, x.shape[-1]))
