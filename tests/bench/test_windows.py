"""Windows of histories: what predicts what, against plain loops."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from bench.quality.events import make_event_log
from bench.quality.windows import PADDING, Contexts, Sequences, WindowBatches
from model.training.histories import Histories, build_histories
from state.item_statistics import DAY_MS

IDS = np.arange(2, 9).astype(np.uint64)  # item 1 is not ranked
Baskets = list[list[list[int]]]


def histories_of(users: Baskets) -> Histories:
    """Per user baskets of items."""
    lines = [(u, 10**12 + b * DAY_MS, item) for u, baskets in enumerate(users)
             for b, basket in enumerate(baskets) for item in basket]  # fmt: skip
    user, time, item = (np.array(column) for column in zip(*lines, strict=True))
    return build_histories(make_event_log(user, {"item_id": item, "event_time_ms": time}))


def ranked(users: Baskets) -> Baskets:
    kept = [[[item for item in basket if item > 1] for basket in baskets] for baskets in users]
    return [[basket for basket in baskets if basket] for baskets in kept]


baskets = st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=4), min_size=3, max_size=6)


@given(st.lists(baskets, min_size=1, max_size=4), st.integers(1, 9), st.integers(0, 99))
@settings(deadline=None)
def test_each_basket_is_predicted_once_from_what_is_before_it(
    users: Baskets, max_len: int, seed: int
) -> None:
    sequences = Sequences.of(histories_of(users), IDS)
    batches = WindowBatches(sequences, max_len, 20).epoch(np.random.default_rng(seed))
    predicted = []
    for batch in batches:
        assert batch.items_BL.size <= max(20, batch.items_BL.shape[1])
        assert batch.items_BL.shape[1] <= max_len
        for number, row in enumerate(batch.rows.tolist()):
            window, position = divmod(row, batch.items_BL.shape[1])
            context = IDS[batch.items_BL[window, : position + 1]].tolist()
            of_row = batch.target_rows == number
            assert batch.weights[of_row].sum() == pytest.approx(1)
            predicted.append((context, sorted(IDS[batch.targets[of_row]].tolist())))
    expected = [
        (of_user[:b], sorted(of_user[b]))
        for of_user in ranked(users)
        for b in range(1, len(of_user))
    ]
    assert sorted(targets for _, targets in predicted) == sorted(targets for _, targets in expected)
    for context, targets in predicted:
        assert any(targets == wanted and are_newest(context, before) for before, wanted in expected)


def test_what_is_no_target_is_context_alone() -> None:
    users = [[[2], [3, 4], [5], [6, 7, 8]]]
    histories = histories_of(users)
    wanted = np.isin(histories.rows["item_id"], [4, 6, 8])
    sequences = Sequences.of(replace(histories, are_targets=wanted), IDS)
    for seed in range(5):
        (batch,) = WindowBatches(sequences, 10, 100).epoch(np.random.default_rng(seed))
        assert sorted(IDS[batch.items_BL[0]].tolist()) == [2, 3, 4, 5, 6, 7, 8]
        assert batch.rows.tolist() == [0, 3]
        targets = [sorted(IDS[batch.targets[batch.target_rows == row]].tolist()) for row in (0, 1)]
        assert targets == [[4], [6, 8]]
        assert batch.weights.tolist() == [1, 0.5, 0.5]


def are_newest(context: list[int], before: list[list[int]]) -> bool:
    """The newest interactions of these baskets; of the oldest basket it may be any part, of each in any order."""
    for basket in reversed(before):
        if len(context) <= len(basket):
            return all(context.count(item) <= basket.count(item) for item in context)
        context, newest = context[: -len(basket)], context[-len(basket) :]
        if sorted(newest) != sorted(basket):
            return False
    return not context


def test_the_order_within_a_basket_alone_is_drawn() -> None:
    users = [[[2, 3, 4, 5], [6], [7, 8]]]
    sequences = Sequences.of(histories_of(users), IDS)
    orders = set()
    for seed in range(20):
        (batch,) = WindowBatches(sequences, 10, 100).epoch(np.random.default_rng(seed))
        items = IDS[batch.items_BL[0]].tolist()
        assert sorted(items[:4]) == [2, 3, 4, 5]
        assert items[4] == 6
        assert batch.rows.tolist() == [3, 4]
        orders.add(tuple(items[:4]))
    assert len(orders) > 5


def test_long_histories_are_cut_elsewhere_each_time() -> None:
    users = [[[2 + b % 7] for b in range(50)]]
    batches = WindowBatches(Sequences.of(histories_of(users), IDS), 8, 1000)
    random = np.random.default_rng(0)
    firsts = set()
    for _ in range(30):
        (batch,) = batches.epoch(random)
        assert (batch.items_BL != PADDING).sum() == 50
        firsts.add(int((batch.items_BL != PADDING).sum(1).min()))
    assert len(firsts) > 3


def test_contexts_are_the_newest_ranked_items() -> None:
    users = [[[2, 1], [1, 1], [3], [4, 5]], [[6], [7], [8]]]
    histories = histories_of(users)
    contexts = Contexts(histories, IDS)
    assert IDS[contexts.newest(5, 2)[0]].tolist() == [2, 3]
    assert IDS[contexts.newest(5, 9)[0]].tolist() == [2, 3]
    assert IDS[contexts.newest(9, 9)[0]].tolist() == [6, 7]
    assert IDS[contexts.seen(5)].tolist() == [2, 3]
