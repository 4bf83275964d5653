"""The lifecycle summary: additive, independent of how chunks are grouped, tied to its bundle."""

import struct
from dataclasses import replace
from random import Random
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from model.bundle import Bundle
from model.compression import Compressor
from model.errors import RescanNeeded, SummaryError
from model.features import to_tensors
from model.network import Network
from model.quasi_linear import Delta
from state.item_statistics import STATISTICS, ItemStatistics, statistics_of
from state.item_statistics_codec import decode_statistics
from state.summary import Summary
from tests.model.worlds import SMALL, make_rows

ROWS = make_rows(40)
CHUNKS = [ROWS[i : i + 4] for i in range(0, 40, 4)]


def compressor_with(bundle: Bundle, delta: Delta) -> Compressor:
    """An untrained network of the bundle's sizes."""
    torch.manual_seed(2)
    config = replace(
        SMALL.network, lifecycle=replace(SMALL.network.lifecycle, delta=delta, top_r=2)
    )
    network = Network(config, SMALL.history, num_levels=3, codebook_size=6)
    return Compressor(replace(bundle, network=network.eval().requires_grad_(False)))


@pytest.fixture(scope="module", params=get_args(Delta))
def compressor(bundle: Bundle, request: pytest.FixtureRequest) -> Compressor:
    return compressor_with(bundle, request.param)


@pytest.fixture(scope="module")
def keeping(bundle: Bundle) -> Compressor:
    """With delta `top_r`."""
    return compressor_with(bundle, "top_r")


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


@settings(max_examples=30, deadline=None)
@given(cuts=st.sets(st.integers(1, 39), max_size=8), random=st.randoms(use_true_random=False))
def test_parts_of_any_size_in_any_order_equal_one_shot(
    compressor: Compressor, cuts: set[int], random: Random
) -> None:
    parts = np.split(ROWS, sorted(cuts))
    random.shuffle(parts)
    whole = compressor.roll(None, [ROWS], 40, now_ms=5)
    assert_alike(compressor.roll(None, parts, 40, now_ms=5), whole)


def test_a_hundred_thousand_interactions_rolled_through_the_codec_stay_exact(
    compressor: Compressor,
) -> None:
    """Float32 vectors, a thousand summaries encoded and decoded, against one sum."""
    rows = make_rows(100_000)
    summary, whole = None, None
    for end in range(100, 100_001, 100):
        summary = compressor.roll(summary, [rows[end - 100 : end]], end, now_ms=5)
    whole = compressor.roll(None, [rows], 100_000, now_ms=5)
    assert summary is not None
    assert_alike(summary, whole, atol=1e-5)
    rolled, expected = (
        compressor._layout.decode(one.accumulators).state for one in (summary, whole)
    )
    error = (rolled - expected).abs().max() / expected.abs().max()
    assert error < 1e-5


def test_statistics_roll_with_the_chunks(stepwise: Summary) -> None:
    same_statistics(stepwise, statistics_of(ROWS))


def same_statistics(summary: Summary, whole: ItemStatistics) -> None:
    rolled = decode_statistics(summary.item_statistics)
    assert np.array_equal(rolled.disliked, whole.disliked)
    for name in STATISTICS.names or ():
        np.testing.assert_allclose(rolled.items[name], whole.items[name], rtol=1e-12)
        np.testing.assert_allclose(rolled.history[name], whole.history[name], rtol=1e-12)


def test_statistics_are_bounded(bundle: Bundle) -> None:
    rows = make_rows(2_000)
    rows["item_id"], rows["kinds"] = np.arange(1, 2_001), 2
    summary = Compressor(bundle).roll(None, [rows[:1_000], rows[1_000:]], 2_000, now_ms=5)
    statistics = decode_statistics(summary.item_statistics)
    assert statistics.items["item_id"].tolist() == list(range(2_001 - 512, 2_001))
    assert statistics.history["count"].tolist() == [2_000]


def test_a_base_without_statistics_gets_none(compressor: Compressor, stepwise: Summary) -> None:
    """Those of its chunks could only be partial."""
    base = replace(stepwise, item_statistics=b"")
    assert compressor.roll(base, CHUNKS[:1], 44, now_ms=5).item_statistics == b""


def assert_alike(one: Summary, other: Summary, atol: float = 1e-5) -> None:
    assert (one.count, one.boundary) == (other.count, other.boundary)
    np.testing.assert_allclose(one.tokens, other.tokens, atol=atol)
    assert len(one.accumulators) == len(other.accumulators)


@pytest.mark.parametrize("half", [4, 20, 36])
def test_merged_parts_equal_the_whole(compressor: Compressor, stepwise: Summary, half: int) -> None:
    """Shards of a backfill: each begins with nothing, whichever comes first."""
    early = compressor.roll(None, CHUNKS[: half // 4], half, now_ms=1)
    late = compressor.roll(None, CHUNKS[half // 4 :], 40, now_ms=2)
    for one, other in ((early, late), (late, early)):
        merged = compressor.merge(one, other, now_ms=5)
        assert_alike(merged, stepwise)
        same_statistics(merged, statistics_of(ROWS))
        assert merged.built_at_ms == 5
    rolled_on = compressor.roll(merged, [ROWS[:4]], 44, now_ms=5)
    assert_alike(rolled_on, compressor.roll(stepwise, [ROWS[:4]], 44, now_ms=5))


def test_parts_that_overlap_are_not_merged(compressor: Compressor, stepwise: Summary) -> None:
    early = compressor.roll(None, CHUNKS[:2], 8, now_ms=1)
    with pytest.raises(SummaryError, match="they overlap"):
        compressor.merge(early, stepwise, now_ms=5)


@pytest.mark.parametrize("delta", ["self", "none"])
@settings(max_examples=30, deadline=None)
@given(gone=st.sets(st.integers(0, 39), max_size=40))
def test_what_is_forgotten_was_never_seen(bundle: Bundle, delta: Delta, gone: set[int]) -> None:
    compressor = compressor_with(bundle, delta)
    whole = compressor.roll(None, CHUNKS, 40, now_ms=5)
    forgot = compressor.forget(whole, ROWS[sorted(gone)], now_ms=5)
    left = np.delete(ROWS, sorted(gone))
    assert_alike(forgot, compressor.roll(None, [left], 40, now_ms=5))
    assert bool(forgot.item_statistics) == (len(gone) in (0, 40))


def test_all_of_a_summary_can_be_forgotten(compressor: Compressor, stepwise: Summary) -> None:
    empty = compressor.forget(stepwise, ROWS, now_ms=5)
    assert empty == replace(compressor.roll(None, [], 40, now_ms=5), tokens=empty.tokens)
    assert empty.tokens.tobytes() == compressor.roll(None, [], 40, now_ms=5).tokens.tobytes()


def test_more_than_a_summary_holds_cannot_be_forgotten(
    compressor: Compressor, stepwise: Summary
) -> None:
    with pytest.raises(
        SummaryError, match="41 interactions shall be forgotten, the summary counts 40"
    ):
        compressor.forget(stepwise, make_rows(41), now_ms=5)


def test_kept_keys_need_a_rescan_and_others_are_subtracted(keeping: Compressor) -> None:
    """Exactly the interactions whose loss changes which keys are kept are refused."""
    rows = make_rows(200, seed=4)
    whole = keeping.roll(None, [rows], 200, now_ms=5)
    refused = 0
    for i in range(0, 200, 5):
        without = keeping.roll(None, [np.delete(rows, i)], 200, now_ms=5)
        try:
            forgot = keeping.forget(whole, rows[i : i + 1], now_ms=5)
        except RescanNeeded:
            refused += 1
            assert kept_scores(without) != pytest.approx(kept_scores(whole))
        else:
            assert kept_scores(without) == pytest.approx(kept_scores(whole))
            assert_alike(forgot, without)
    assert 0 < refused < 20


def kept_scores(summary: Summary) -> list[float]:
    """By the layout drawn in model/accumulator_codec.py, for the sizes of SMALL."""
    layers, heads, width, queries, kept = struct.unpack_from("<5H", summary.accumulators, 4)
    start = 14 + 8 * layers * heads * (width * width + queries)
    count = layers * heads * queries * kept
    return np.frombuffer(summary.accumulators, "<f8", count, start).tolist()


def test_a_few_interactions_are_all_kept(keeping: Compressor) -> None:
    with pytest.raises(RescanNeeded, match="1 of 1 interactions"):
        keeping.forget(keeping.roll(None, [ROWS[:2]], 4, now_ms=5), ROWS[:1], now_ms=5)


@pytest.mark.parametrize("delta", ["self", "none"])
def test_accumulators_written_by_the_first_release_are_read(bundle: Bundle, delta: Delta) -> None:
    """GMQ1: magic, layers, heads, head width, then Z in float64."""
    compressor = compressor_with(bundle, delta)
    whole = compressor.roll(None, CHUNKS, 40, now_ms=5)
    written = struct.pack("<4sHHH", b"GMQ1", 2, 2, 8) + whole.accumulators[10:]
    assert written == whole.accumulators
    assert len(written) == 10 + 8 * 2 * 2 * 8 * 8
    again = compressor.roll(replace(whole, accumulators=written), [], 40, now_ms=5)
    assert again.tokens.tobytes() == whole.tokens.tobytes()


def test_accumulators_of_another_delta_are_refused(bundle: Bundle, keeping: Compressor) -> None:
    plain = compressor_with(bundle, "none").roll(None, CHUNKS, 40, now_ms=5)
    with pytest.raises(SummaryError, match="GMQ2"):
        keeping.roll(plain, [], 40, now_ms=5)


def test_training_reads_the_same_tokens(compressor: Compressor, stepwise: Summary) -> None:
    """The batched float32 path of training against the float64 path of serving."""
    network = compressor.network
    items = network.features(to_tensors(ROWS, network.config.features).unsqueeze())
    sums = network.lifecycle.accumulate(items, torch.ones(1, 40, dtype=torch.bool))
    tokens = network.lifecycle.tokens(sums, torch.tensor([40]))
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
