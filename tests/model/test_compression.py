"""The lifecycle summary: additive, independent of how chunks are grouped, tied to its bundle."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from model.bundle import Bundle
from model.compression import Compressor
from model.errors import SummaryError
from model.features import to_tensors
from model.lifecycle import QuasiLinearAttention
from state.item_statistics import STATISTICS, statistics_of
from state.item_statistics_codec import decode_statistics
from state.summary import Summary
from tests.model.worlds import make_rows

ROWS = make_rows(40)
CHUNKS = [ROWS[i : i + 4] for i in range(0, 40, 4)]


@pytest.fixture(scope="module")
def compressor(bundle: Bundle) -> Compressor:
    return Compressor(bundle)


@pytest.fixture(scope="module")
def stepwise(compressor: Compressor) -> Summary:
    summary = None
    for i, chunk in enumerate(CHUNKS):
        summary = compressor.roll(summary, [chunk], 4 * (i + 1), now_ms=5)
    assert summary is not None
    return summary


@pytest.mark.parametrize("sizes", [[10], [3, 7], [1, 1, 8], [5, 0, 5]])
def test_grouping_of_chunks_changes_no_bit(
    compressor: Compressor, stepwise: Summary, sizes: list[int]
) -> None:
    summary, done = None, 0
    for size in sizes:
        summary = compressor.roll(summary, CHUNKS[done : done + size], 4 * (done + size), now_ms=5)
        done += size
    assert summary is not None
    assert summary.accumulators == stepwise.accumulators
    assert summary.tokens.tobytes() == stepwise.tokens.tobytes()
    assert summary.item_statistics == stepwise.item_statistics
    assert (summary.count, summary.boundary) == (40, 40)


def test_chunks_equal_one_shot(compressor: Compressor, stepwise: Summary) -> None:
    whole = compressor.roll(None, [ROWS], 40, now_ms=5)
    np.testing.assert_allclose(whole.tokens, stepwise.tokens, atol=1e-5)
    np.testing.assert_allclose(
        np.frombuffer(whole.accumulators[10:]),
        np.frombuffer(stepwise.accumulators[10:]),
        rtol=1e-5,
        atol=1e-5,
    )


def test_statistics_roll_with_the_chunks(stepwise: Summary) -> None:
    rolled, whole = decode_statistics(stepwise.item_statistics), statistics_of(ROWS)
    for name in STATISTICS.names or ():
        np.testing.assert_allclose(rolled.items[name], whole.items[name], rtol=1e-12)
        np.testing.assert_allclose(rolled.history[name], whole.history[name], rtol=1e-12)


def test_statistics_are_bounded(bundle: Bundle) -> None:
    rows = make_rows(2_000)
    rows["item_id"] = np.arange(1, 2_001)
    summary = Compressor(bundle).roll(None, [rows[:1_000], rows[1_000:]], 2_000, now_ms=5)
    statistics = decode_statistics(summary.item_statistics)
    assert statistics.items["item_id"].tolist() == list(range(2_001 - 512, 2_001))
    assert statistics.history["count"].tolist() == [2_000]


def test_a_base_without_statistics_gets_none(compressor: Compressor, stepwise: Summary) -> None:
    """Those of its chunks could only be partial."""
    base = replace(stepwise, item_statistics=b"")
    assert compressor.roll(base, CHUNKS[:1], 44, now_ms=5).item_statistics == b""


def test_training_reads_the_same_tokens(bundle: Bundle, stepwise: Summary) -> None:
    """The batched float32 path of training against the float64 path of serving."""
    network = bundle.network
    items = network.features(to_tensors(ROWS, network.config.features).unsqueeze())
    state = network.lifecycle.accumulate(items, torch.ones(1, 40, dtype=torch.bool))
    tokens = network.lifecycle.tokens(state, torch.tensor([40]))
    np.testing.assert_allclose(tokens[0], stepwise.tokens, atol=1e-5)


def test_tokens_have_the_documented_shape_and_type(bundle: Bundle, stepwise: Summary) -> None:
    config = bundle.network.config
    assert stepwise.tokens.shape == (config.lifecycle.num_queries, config.layer.width)
    assert stepwise.tokens.dtype == np.float32
    assert stepwise.bundle_version == bundle.version
    assert stepwise.built_at_ms == 5


def test_nothing_compresses_to_a_finite_summary(compressor: Compressor) -> None:
    summary = compressor.roll(None, [], 0, now_ms=1)
    assert summary.count == 0
    assert np.isfinite(summary.tokens).all()


def test_a_base_of_another_bundle_is_refused(compressor: Compressor, stepwise: Summary) -> None:
    with pytest.raises(SummaryError, match="bundle other"):
        compressor.roll(replace(stepwise, bundle_version="other"), [], 40, now_ms=1)


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[:-8], lambda b: b"GMQ9" + b[4:], lambda b: b""],
    ids=["short", "magic", "empty"],
)
def test_accumulators_of_another_layout_are_refused(
    compressor: Compressor, stepwise: Summary, damage: object
) -> None:
    broken = replace(stepwise, accumulators=damage(stepwise.accumulators))  # type: ignore[operator]
    with pytest.raises(SummaryError, match="accumulators have"):
        compressor.roll(broken, [], 40, now_ms=1)


@pytest.mark.parametrize("delta", ["self", "none"])
def test_quasi_linear_attention_matches_numpy(bundle: Bundle, delta: str) -> None:
    layer = bundle.network.config.layer
    attention = QuasiLinearAttention(layer, delta)
    queries, items = torch.randn(1, 3, layer.width), torch.randn(1, 5, layer.width)
    key, value = attention.keys_values(items)
    state = key.transpose(-1, -2) @ value / 5
    result = attention(queries, state)[0].detach().numpy()

    def silu(x: np.ndarray) -> np.ndarray:
        return x / (1 + np.exp(-x))

    w_q, w_k, w_v, w_o = (
        m.weight.detach().numpy().astype(np.float64)
        for m in (attention.to_query, attention.to_key, attention.to_value, attention.out)
    )
    e, x = queries[0].numpy().astype(np.float64), items[0].numpy().astype(np.float64)
    head_width, heads = layer.width // layer.num_heads, []
    for h in range(layer.num_heads):
        part = slice(h * head_width, (h + 1) * head_width)
        z = silu(x @ w_k[part].T).T @ (x @ w_v[part].T) / 5
        z = z / np.sqrt(np.mean(z**2) + 1e-8)
        query = silu(e @ w_q[part].T)
        read = query @ silu(z)
        if delta == "self":
            own = (query * silu(e @ w_k[part].T)).sum(1, keepdims=True)
            read = read + own * (e @ w_v[part].T)
        heads.append(read)
    np.testing.assert_allclose(result, np.concatenate(heads, 1) @ w_o.T, atol=1e-4)
