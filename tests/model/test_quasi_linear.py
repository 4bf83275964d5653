"""Quasi-linear attention against numpy loops, with every delta; its gradients; its sums."""

from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from model.accumulators import MAX_SCORE, Accumulators, best_keys
from model.layers import LayerConfig
from model.quasi_linear import Delta, QuasiLinearAttention

LAYER = LayerConfig(width=8, num_heads=2, ffn_width=8)
TOP_R = 3
DELTAS = get_args(Delta)

Array = npt.NDArray[np.float64]


def make_attention(delta: Delta, dtype: torch.dtype = torch.float64) -> QuasiLinearAttention:
    torch.manual_seed(1)
    return QuasiLinearAttention(LAYER, delta, TOP_R).to(dtype)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


def twin(attention: QuasiLinearAttention, queries: Array, static: Array, items: Array) -> Array:
    """The formulas, head by head and query by query, over all items at once."""
    w_q, w_k, w_v, w_o = (
        m.weight.detach().double().numpy()
        for m in (attention.to_query, attention.to_key, attention.to_value, attention.out)
    )
    gain = attention.state_norm.weight.detach().double().numpy()
    width, n, heads = LAYER.width // LAYER.num_heads, len(items), []
    for head in range(LAYER.num_heads):
        part = slice(head * width, (head + 1) * width)
        keys, values = items @ w_k[part].T, items @ w_v[part].T
        z = sum(np.outer(silu(k), v) for k, v in zip(keys, values, strict=True)) / n
        z = gain * z / np.sqrt(np.mean(z**2) + 1e-8)
        rows = []
        for query, fixed in zip(queries @ w_q[part].T, static @ w_q[part].T, strict=True):
            row = silu(query) @ silu(z)
            if attention.delta == "top_r":
                row = row + top_r_term(query, fixed, keys, values)
            rows.append(row)
        read = np.array(rows)
        if attention.delta == "self":
            own = (silu(queries @ w_q[part].T) * silu(queries @ w_k[part].T)).sum(1, keepdims=True)
            read = read + own * (queries @ w_v[part].T)
        heads.append(read)
    return np.asarray(np.concatenate(heads, 1) @ w_o.T)


def top_r_term(query: Array, fixed: Array, keys: Array, values: Array) -> Array:
    scale = np.sqrt(len(query))
    mass = np.exp(np.clip(keys @ fixed / scale, -MAX_SCORE, MAX_SCORE))
    best = np.argsort(-(keys @ fixed))[:TOP_R]
    others = mass.sum() - mass[best].sum()
    exact = np.exp(keys[best] @ query / scale)
    exact = exact / (exact.sum() + others)
    linear = silu(keys[best]) @ silu(query) / len(keys)
    return np.asarray((exact - linear) @ values[best])


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("num_items", [1, TOP_R - 1, 12])
def test_matches_numpy(delta: Delta, num_items: int) -> None:
    attention = make_attention(delta)
    queries, static = randn(1, 4, 8), randn(4, 8, seed=1)
    items = randn(1, num_items, 8, seed=2)
    sums = attention.accumulate(items, static)
    result = attention(queries, sums, torch.tensor([num_items]))[0].detach()
    expected = twin(attention, queries[0].numpy(), static.numpy(), items[0].numpy())
    np.testing.assert_allclose(result, expected, atol=1e-10)


def test_with_one_layers_query_top_r_weighs_as_softmax_does() -> None:
    """Query and static query alike, and every key kept: softmax minus linear attention, exactly."""
    attention = QuasiLinearAttention(LAYER, "top_r", top_r=6).double()
    queries, items = randn(1, 2, 8), randn(1, 6, 8, seed=2)
    sums = attention.accumulate(items, queries[0])
    with_top = attention(queries, sums, torch.tensor([6]))
    without = attention(queries, Accumulators(sums.state, None), torch.tensor([6]))
    q, k, v = (
        m(x).view(1, -1, 2, 4).transpose(1, 2)
        for m, x in (
            (attention.to_query, queries),
            (attention.to_key, items),
            (attention.to_value, items),
        )
    )
    softmax = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    silu_ = torch.nn.functional.silu
    linear = silu_(q) @ (silu_(k).transpose(-1, -2) @ v) / 6
    expected = attention.out((softmax - linear).transpose(1, 2).flatten(2))
    torch.testing.assert_close(with_top - without, expected, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("delta", DELTAS)
def test_gradients_are_right(delta: Delta) -> None:
    """In float64, to queries, static queries, items and every weight; padding gets none."""
    attention = make_attention(delta)
    mask = torch.tensor([[True, True, False, True, True]])

    def output(queries: Tensor, static: Tensor, items: Tensor, *_: Tensor) -> Tensor:
        sums = attention.accumulate(items, static, mask)
        return attention(queries, sums, mask.sum(1))

    inputs = [randn(1, 2, 8), randn(2, 8, seed=1), randn(1, 5, 8, seed=2)]
    for tensor in inputs:
        tensor.requires_grad_()
    assert torch.autograd.gradcheck(output, (*inputs, *attention.parameters()), atol=1e-6)
    (gradient,) = torch.autograd.grad(output(*inputs).square().sum(), inputs[2])
    assert gradient[0, 2].abs().max() == 0
    assert gradient[0, 3].abs().max() > 0


@pytest.mark.parametrize("delta", DELTAS)
def test_padding_adds_nothing(delta: Delta) -> None:
    attention, static = make_attention(delta), randn(2, 8, seed=1)
    items, mask = (
        randn(1, 7, 8, seed=2),
        torch.tensor([[True, False, True, False, True, True, False]]),
    )
    masked, real = attention.accumulate(items, static, mask), items[mask][None]
    expected = attention.accumulate(real, static)
    count = torch.tensor([4])
    torch.testing.assert_close(
        attention(randn(1, 2, 8), masked, count), attention(randn(1, 2, 8), expected, count)
    )


@pytest.mark.parametrize("delta", DELTAS)
def test_an_empty_life_reads_as_something_finite(delta: Delta) -> None:
    attention, static = make_attention(delta), randn(2, 8, seed=1)
    for items, mask in (
        (randn(1, 0, 8), torch.zeros(1, 0, dtype=torch.bool)),
        (randn(1, 3, 8).requires_grad_(), torch.zeros(1, 3, dtype=torch.bool)),
    ):
        sums = attention.accumulate(items, static, mask)
        result = attention(randn(1, 2, 8), sums, torch.zeros(1, dtype=torch.long))
        assert torch.isfinite(result).all()
        result.sum().backward()
        assert all(
            torch.isfinite(p.grad).all() for p in attention.parameters() if p.grad is not None
        )


def test_best_keys_are_those_of_a_sort_however_they_are_merged() -> None:
    scores, keys, values = (
        randn(1, 2, 40, 3),
        randn(1, 2, 40, 4, seed=1),
        randn(1, 2, 40, 4, seed=2),
    )
    merged = None
    for start, end in ((30, 40), (0, 1), (1, 13), (13, 30)):
        part = slice(start, end)
        top = best_keys(scores[:, :, part], keys[:, :, part], values[:, :, part], 5)
        merged = top if merged is None else merged.merged(top)
    assert merged is not None
    torch.testing.assert_close(merged.mass, scores.exp().sum(2))
    for head in range(2):
        for query in range(3):
            order = np.argsort(-scores[0, head, :, query].numpy())[:5]
            assert torch.equal(merged.scores[0, head, query], scores[0, head, order, query])
            assert torch.equal(merged.keys[0, head, query], keys[0, head, order])
            assert torch.equal(merged.values[0, head, query], values[0, head, order])


def test_huge_scores_overflow_nothing() -> None:
    attention = make_attention("top_r", torch.float32)
    with torch.no_grad():
        attention.to_query.weight.mul_(1e3)
        attention.to_key.weight.mul_(1e3)
    items, queries = randn(1, 500, 8).float(), randn(1, 2, 8, seed=1).float()
    sums = attention.accumulate(items, queries[0])
    assert torch.isfinite(attention(queries, sums, torch.tensor([500]))).all()


def test_what_is_read_lies_near_what_was_summed_before_any_step() -> None:
    """A life of one item: other output projections would turn it anywhere, a cosine of 0.1 at this width."""
    torch.manual_seed(0)
    layer = LayerConfig(width=64, num_heads=4)
    attention = QuasiLinearAttention(layer, "none", TOP_R)
    items = torch.randn(8, 1, 64).expand(-1, 20, -1)
    queries = torch.randn(8, 16, 64)
    read = attention(queries, attention.accumulate(items, queries[0]), torch.full((8,), 20))
    assert torch.cosine_similarity(read, items[:, :1], dim=-1).abs().mean() > 0.25
