"""A network whose summaries no state node would take is refused when it is configured."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from model.bundle import Bundle
from model.compression import Compressor
from model.errors import ModelConfigError
from model.lifecycle import LifecycleConfig
from model.network import Network, NetworkConfig
from model.repeats import RepeatConfig
from model.summary_size import check_summary_size
from model.training.config import TrainConfig
from state.interaction import DISLIKE_MASK
from state.item_statistics import statistics_of
from state.item_statistics_codec import encode_statistics, max_encoded_bytes
from state.summary import MAX_SUMMARY_BYTES
from tests.model.worlds import SMALL, make_rows

LARGE = NetworkConfig(lifecycle=LifecycleConfig(delta="top_r", top_r=256))


def test_a_training_run_is_refused_before_it_begins() -> None:
    with pytest.raises(ModelConfigError, match=r"top_r 256, .* num_layers 2.* 64") as refused:
        TrainConfig(network=LARGE)
    assert f"a state node takes {MAX_SUMMARY_BYTES}" in str(refused.value)
    with pytest.raises(ModelConfigError, match="max_items 99999"):
        TrainConfig(network=NetworkConfig(repeats=RepeatConfig(max_items=99_999)))
    TrainConfig(network=replace(LARGE, lifecycle=replace(LARGE.lifecycle, delta="self")))


def test_a_worker_refuses_a_bundle_whose_summaries_are_too_large(bundle: Bundle) -> None:
    lifecycle = replace(SMALL.network.lifecycle, delta="top_r", top_r=8_192)
    network = Network(replace(SMALL.network, lifecycle=lifecycle), SMALL.history, 3, 6)
    with pytest.raises(ModelConfigError, match="top_r 8192"):
        Compressor(replace(bundle, network=network))


@pytest.mark.parametrize("top_r", [1, 500, 600])
def test_the_size_is_that_of_a_real_summary(bundle: Bundle, top_r: int) -> None:
    """Refused is what passes the limit with item statistics at their worst, and nothing else."""
    lifecycle = replace(SMALL.network.lifecycle, delta="top_r", top_r=top_r)
    config = replace(SMALL.network, lifecycle=lifecycle)
    network = Network(config, SMALL.history, 3, 6).eval().requires_grad_(False)
    summary = Compressor(replace(bundle, network=network)).roll(None, [make_rows(4)], 4, now_ms=1)
    num_bytes = len(summary.accumulators) + summary.tokens.nbytes
    left = MAX_SUMMARY_BYTES - num_bytes - max_encoded_bytes(config.repeats.max_items)
    per_item = max_encoded_bytes(10_001) - max_encoded_bytes(10_000)
    fits = config.repeats.max_items + left // (per_item + 1)
    check_summary_size(replace(config, repeats=RepeatConfig(max_items=fits)))
    with pytest.raises(ModelConfigError, match=str(len(summary.accumulators))):
        check_summary_size(replace(config, repeats=RepeatConfig(max_items=fits + fits // 50)))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_statistics_never_take_more_than_their_limit(num_items: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = make_rows(2 * num_items, seed)
    rows["item_id"] = np.tile(random.integers(1, 2**64, num_items, np.uint64), 2)
    rows["event_time_ms"] = np.sort(random.integers(10**12, 4 * 10**12, len(rows)))
    rows["kinds"][:num_items], rows["kinds"][num_items:] = 2, DISLIKE_MASK
    statistics = statistics_of(rows)
    assert len(statistics.items) == len(statistics.disliked) == num_items
    assert len(encode_statistics(statistics)) <= max_encoded_bytes(num_items)
