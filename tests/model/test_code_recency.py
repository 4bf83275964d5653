"""First codes of the nearer segments: counted as a loop would, the same in training and serving, and obeyed."""

from dataclasses import replace
from math import ceil, exp, log, log2

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from model.bundle import Bundle, load_bundle
from model.code_recency import NUM_DISTANCES, FirstCodes
from model.query import Query
from model.recommender import Recommender
from model.training.batches import BatchBuilder
from model.training.evaluate import rank_at
from model.training.histories import build_histories
from state.event_log import EventLog
from state.interaction import Rows
from state.user_delta import split_state
from state.user_state import UserMeta, UserState
from tests.model.worlds import RECENCY, SMALL, make_rows


@pytest.fixture(scope="module")
def builder(event_log: EventLog, recency: Bundle) -> BatchBuilder:
    histories = build_histories(event_log)
    return BatchBuilder(histories, recency.catalogue, RECENCY.network, recency.history, 1_000)


def counted(codes: list[int], num_codes: int) -> list[list[float]]:
    """By a loop over interactions."""
    counts = [[0] * num_codes for _ in range(NUM_DISTANCES)]
    for place, code in enumerate(codes):
        back = len(codes) - place
        if code >= 0:
            counts[min(ceil(log2(back)), NUM_DISTANCES - 1)][code] += 1
    return [[log(1 + count) for count in row] for row in counts]


def first_codes(bundle: Bundle, rows: Rows) -> list[int]:
    by_id = {item.item_id: i for i, item in enumerate(bundle.catalogue)}
    places = [by_id.get(item_id, -1) for item_id in rows["item_id"].tolist()]
    return [bundle.catalogue.sid_of_item(i)[0] if i >= 0 else -1 for i in places]


def state_of(rows: Rows) -> UserState:
    return UserState("someone", UserMeta(length=len(rows)), rows, None)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), length=st.sampled_from([0, 1, 2, 5, 33, 9_000]))
def test_counts_are_those_of_a_loop(bundle: Bundle, seed: int, length: int) -> None:
    first = FirstCodes(bundle.catalogue)
    codes = np.random.default_rng(seed).integers(-1, first.num_codes, length)
    expected = torch.tensor(counted(codes.tolist(), first.num_codes))
    torch.testing.assert_close(first.log_counts(codes), expected)


def test_training_counts_mid_term_and_recent(recency: Bundle, builder: BatchBuilder) -> None:
    histories = builder.histories
    cuts = histories.train_cuts[::37]
    found = builder.build(cuts, 2, 4, np.random.default_rng(0)).code_counts
    assert found is not None
    for row, cut in enumerate(cuts.tolist()):
        start = int(histories.user_start[cut])
        boundary = start + recency.history.lifecycle_boundary(cut - start)
        codes = first_codes(recency, histories.rows[boundary:cut])
        torch.testing.assert_close(found[row], torch.tensor(counted(codes, found.shape[-1])))


def test_without_the_setting_nothing_is_counted(event_log: EventLog, bundle: Bundle) -> None:
    histories = build_histories(event_log)
    plain = BatchBuilder(histories, bundle.catalogue, SMALL.network, bundle.history, 9)
    assert plain.build(histories.train_cuts[:3], 1, 1, None).code_counts is None
    assert bundle.network.code_recency is None


@pytest.mark.parametrize("num_rows", [0, 1, 7, 19])
def test_serving_does_what_the_formula_says(recency: Bundle, num_rows: int) -> None:
    network, rows = recency.network, make_rows(num_rows)
    rows["item_id"][::5] = 999_999  # is in no catalogue
    module = network.code_recency
    assert module is not None
    recommender = Recommender(recency)
    earlier, _ = recommender.encode(split_state(state_of(rows[: num_rows // 2]), recency.history))
    context, _ = recommender.encode(split_state(state_of(rows), recency.history), earlier)
    weights = (module.weights.weight @ context.bos[0] + module.weights.bias).tolist()
    num_codes = FirstCodes(recency.catalogue).num_codes
    counts = counted(first_codes(recency, rows), num_codes)
    expected = network.logits(context.bos[:, None], 0)[0, 0].tolist()
    added, damped = weights[:NUM_DISTANCES], weights[NUM_DISTANCES:]
    for code in range(num_codes):
        damping = sum(damped[r] * counts[r][code] for r in range(NUM_DISTANCES))
        expected[code] *= 2 / (1 + exp(damping))
        expected[code] += sum(added[r] * counts[r][code] for r in range(NUM_DISTANCES))
    assert context.first_logits[0, 0].tolist() == pytest.approx(expected, abs=1e-4)


def test_what_just_came_can_be_forbidden(recency: Bundle, builder: BatchBuilder) -> None:
    """In searches of training and serving alike."""
    forbidding = replace(recency, network=load_bundle(recency.path).network)
    module = forbidding.network.code_recency
    assert module is not None
    with torch.no_grad():
        nn.init.zeros_(module.weights.weight)
        module.weights.bias[:NUM_DISTANCES] = -100.0
    histories = builder.histories
    cut = int(histories.held_out_cuts[3])
    rows = histories.rows[cut - recency.history.recent_len : cut]
    seen = set(first_codes(recency, rows))
    assert 0 < len(seen) < FirstCodes(recency.catalogue).num_codes
    nearer = histories.rows[cut - recency.history.mid_term_len : cut]
    seen_nearer = set(first_codes(recency, nearer))
    for bundle, is_forbidden in ((recency, False), (forbidding, True)):
        answer = Recommender(bundle).recommend(state_of(rows), Query(k=3, beam_width=100))
        assert ({one.sid[0] for one in answer}.isdisjoint(seen)) == is_forbidden
        (ranked,) = rank_at(bundle.network, bundle.trie, builder, np.array([cut]), 100)
        offline = {recency.catalogue.sid_of_item(int(i))[0] for i in ranked[:3]}
        assert offline.isdisjoint(seen_nearer) == is_forbidden


def test_it_learns(recency: Bundle) -> None:
    """From zero."""
    module = load_bundle(recency.path).network.code_recency
    assert module is not None
    assert float(module.weights.bias.detach().abs().max()) > 0
