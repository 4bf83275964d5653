"""What is to be recommended: interactions of some kinds are targets, the others are history alone."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from model.bundle import Bundle
from model.errors import ModelConfigError, TrainingError
from model.network import NetworkConfig
from model.next_item import NextItemConfig
from model.training.arrivals import arrival_cuts
from model.training.batches import BatchBuilder
from model.training.evaluate import popularity_recall
from model.training.gains import item_gains
from model.training.histories import Histories, build_histories
from state.event_log import EventLog
from state.interaction import DISLIKE_MASK, INTERACTION, KIND_NAMES, are_dislikes, have_kinds
from tests.model.worlds import SMALL

VIEW, PURCHASE = (1 << KIND_NAMES.index(name) for name in ("view", "purchase"))
KINDS = st.sampled_from([VIEW, PURCHASE, VIEW | PURCHASE, PURCHASE | DISLIKE_MASK])


def with_kinds(log: EventLog, kinds: np.ndarray) -> EventLog:
    rows = log.rows.copy()
    rows["kinds"] = kinds
    return replace(log, rows=rows)


def log_of(users: list[list[list[int]]]) -> EventLog:
    """Per user baskets of kinds; items are numbered through."""
    lines = [(u, b, kinds) for u, baskets in enumerate(users) for b, basket in enumerate(baskets) for kinds in basket]  # fmt: skip
    rows = np.zeros(len(lines), INTERACTION)
    rows["item_id"] = 1 + np.arange(len(lines))
    rows["event_time_ms"] = [10**12 + b for _, b, _ in lines]
    rows["kinds"] = [kinds for _, _, kinds in lines]
    index = np.array([u for u, _, _ in lines])
    return EventLog([str(u) for u in range(len(users))], index, [str(i) for i in index], rows)


def test_kinds_are_read_by_name() -> None:
    rows = np.zeros(4, INTERACTION)
    rows["kinds"] = [0, VIEW, PURCHASE, VIEW | PURCHASE]
    assert have_kinds(rows, ["purchase"]).tolist() == [False, False, True, True]
    assert have_kinds(rows, ["purchase", "view", "view"]).tolist() == [False, True, True, True]
    with pytest.raises(ValueError, match="not in tuple"):
        have_kinds(rows, ["bought"])


@given(
    st.lists(
        st.lists(st.lists(KINDS, min_size=1, max_size=3), min_size=3, max_size=6),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 9),
)
@settings(deadline=None)
def test_cuts_are_where_a_target_follows(users: list[list[list[int]]], seed: int) -> None:
    """Against plain loops: all trainable ones, and of every held-out user the last one."""
    wanted: dict[int, list[int]] = {}
    position = 0
    for user, baskets in enumerate(users):
        wanted[user] = []
        for number, basket in enumerate(baskets):
            if number and any(kinds & PURCHASE and not kinds & DISLIKE_MASK for kinds in basket):
                wanted[user].append(position)
            position += len(basket)
    held = {user: cuts[-1] for user, cuts in wanted.items() if cuts}
    trained = [cut for cuts in wanted.values() for cut in cuts[:-1]]
    log = log_of(users)
    if not trained:
        with pytest.raises(TrainingError, match="target_kinds"):
            build_histories(log, None, seed, ["purchase"])
        return
    histories = build_histories(log, None, seed, ["purchase"])
    assert sorted(histories.held_out_cuts.tolist()) == sorted(held.values())
    assert histories.train_cuts.tolist() == trained
    for user, cut in held.items():
        assert set(histories.train_end[histories.users == user].tolist()) == {cut}


def test_one_who_wants_everything_trains_on_all_but_dislikes(event_log: EventLog) -> None:
    kinds = np.where(np.arange(len(event_log.rows)) % 7, PURCHASE, DISLIKE_MASK)
    histories = build_histories(with_kinds(event_log, kinds))
    assert histories.are_targets.tolist() == (~are_dislikes(histories.rows)).tolist()


def test_users_of_whom_nothing_is_held_out_are_trained_on_to_the_end(event_log: EventLog) -> None:
    random = np.random.default_rng(1)
    log = with_kinds(event_log, random.choice([VIEW, PURCHASE], len(event_log.rows)))
    histories = build_histories(log, 5, 1, ["purchase"])
    assert len(histories.held_out_cuts) == 5
    ends = np.searchsorted(histories.users, histories.users, side="right")
    held = np.isin(histories.users, histories.users[histories.held_out_cuts])
    assert np.array_equal(histories.train_end[~held], ends[~held])
    assert set(histories.train_end[held].tolist()) == set(histories.held_out_cuts.tolist())


@pytest.fixture
def half_wanted(event_log: EventLog) -> Histories:
    kinds = np.random.default_rng(0).choice([VIEW, PURCHASE], len(event_log.rows))
    return build_histories(with_kinds(event_log, kinds), target_kinds=["purchase"])


@pytest.fixture
def builder(half_wanted: Histories, bundle: Bundle) -> BatchBuilder:
    network: NetworkConfig = replace(SMALL.network, next_item=NextItemConfig(enabled=True))
    return BatchBuilder(half_wanted, bundle.catalogue, network, SMALL.history, 9)


def test_what_is_not_wanted_is_context_and_no_target(builder: BatchBuilder) -> None:
    histories, catalogue = builder.histories, builder.catalogue
    cuts = histories.train_cuts[::9]
    batch = builder.build(cuts, targets=8, window=24, random=np.random.default_rng(0))
    purchased = have_kinds(histories.rows, ["purchase"])
    found = catalogue.find(histories.rows["item_id"])
    assert (found >= 0).all()
    for row, cut in enumerate(cuts.tolist()):
        end = min(cut + 24, int(histories.train_end[cut]))
        possible = cut + np.flatnonzero(purchased[cut:end])
        weighed = batch.target_weights[row] > 0
        assert weighed.sum() == min(8, len(possible))
        sids = batch.target_sids[row, weighed].tolist()
        assert set(sids) <= set(catalogue.bucket_of_item[found[possible]].tolist())
        recent = np.arange(histories.user_start[cut], cut)[-batch.lengths[2] :]
        following = np.where(purchased[recent + 1], found[recent + 1], -1)
        assert batch.next_items[row, -len(recent) :].tolist() == following.tolist()


def test_each_basket_counts_once_whatever_else_it_holds(builder: BatchBuilder) -> None:
    histories = builder.histories
    cuts = histories.train_cuts[::5]
    batch = builder.build(cuts, 99, 1, None)
    torch.testing.assert_close(batch.target_weights.sum(1), torch.ones(len(cuts)))
    for row, cut in enumerate(cuts.tolist()):
        basket = slice(cut, int(histories.basket_end[cut]))
        wanted = histories.rows["item_id"][basket][histories.are_targets[basket]]
        distinct = np.unique(builder.catalogue.find(wanted))
        hit = np.isin(batch.repeats.items[row], distinct)
        expected = hit * item_gains(np.array(len(distinct)))
        np.testing.assert_allclose(batch.repeat_weights[row], expected, rtol=1e-6)
    assert (batch.repeat_weights > 0).any()


def test_few_targets_make_narrow_batches(builder: BatchBuilder) -> None:
    cuts = builder.histories.train_cuts[:3]
    batch = builder.build(cuts, targets=32, window=1, random=np.random.default_rng(0))
    assert batch.target_weights.shape[1] == (batch.target_weights > 0).sum(1).max()


def test_only_targets_arrive(half_wanted: Histories) -> None:
    codes = np.arange(len(half_wanted.rows))  # each is the first of its code
    everything = replace(half_wanted, are_targets=np.ones(len(codes), np.bool_))
    basket_alone = np.zeros(len(codes), np.bool_)
    found = arrival_cuts(everything, codes, SMALL.history)
    basket_alone[found[1]] = True
    wanted = replace(half_wanted, are_targets=basket_alone)
    assert arrival_cuts(wanted, codes, SMALL.history).tolist() == [found[1]]


def test_recall_asks_for_what_is_wanted_alone(half_wanted: Histories, bundle: Bundle) -> None:
    """Popularity is that of targets, too."""
    wanted = half_wanted.rows["item_id"][half_wanted.are_targets].tolist()
    counts = Counter(wanted)
    kth = sorted(counts.values())[-5]
    for cut in half_wanted.held_out_cuts[:9].tolist():
        basket = slice(cut, int(half_wanted.basket_end[cut]))
        items = np.unique(half_wanted.rows["item_id"][basket][half_wanted.are_targets[basket]])
        found = popularity_recall(half_wanted, bundle.catalogue, np.array([cut]), 5) * len(items)
        surely, possibly = (sum(counts[i] >= kth + more for i in items.tolist()) for more in (1, 0))
        assert surely - 1e-9 <= found <= possibly + 1e-9


def test_kinds_are_checked() -> None:
    assert replace(SMALL, target_kinds=("purchase", "long_view")).target_kinds
    for name in ("dislike", "unspecified", "bought"):
        with pytest.raises(ModelConfigError, match=name):
            replace(SMALL, target_kinds=(name,))
