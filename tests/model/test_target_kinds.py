"""What is to be recommended: interactions of some kinds are targets, the others are history alone."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from model.bundle import Bundle
from model.errors import ModelConfigError, TrainingError
from model.network import NetworkConfig
from model.next_item import NextItemConfig
from model.training.batches import BatchBuilder
from model.training.evaluate import popularity_recall
from model.training.histories import Histories, build_histories
from state.event_log import EventLog
from state.interaction import DISLIKE_MASK, INTERACTION, KIND_NAMES, have_kinds
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
    assert (~histories.are_targets).sum() == (kinds == DISLIKE_MASK).sum()


@pytest.fixture
def half_wanted(event_log: EventLog) -> Histories:
    kinds = np.random.default_rng(0).choice([VIEW, PURCHASE], len(event_log.rows))
    return build_histories(with_kinds(event_log, kinds), target_kinds=["purchase"])


def test_what_is_not_wanted_is_context_and_no_target(
    half_wanted: Histories, bundle: Bundle
) -> None:
    network: NetworkConfig = replace(SMALL.network, next_item=NextItemConfig(enabled=True))
    builder = BatchBuilder(half_wanted, bundle.catalogue, network, SMALL.history, 9)
    cuts = half_wanted.train_cuts[::9]
    batch = builder.build(cuts, targets=8, window=24, random=np.random.default_rng(0))
    purchased = have_kinds(half_wanted.rows, ["purchase"])
    found = bundle.catalogue.find(half_wanted.rows["item_id"])
    for row, cut in enumerate(cuts.tolist()):
        window = np.arange(cut, min(cut + 24, int(half_wanted.train_end[cut])))
        possible = set(bundle.catalogue.bucket_of_item[found[window[purchased[window] & (found[window] >= 0)]]].tolist())  # fmt: skip
        weighed = batch.target_weights[row] > 0
        assert weighed.sum() == min(8, (purchased[window] & (found[window] >= 0)).sum())
        assert set(batch.target_sids[row, weighed].tolist()) <= possible
        basket = np.arange(cut, half_wanted.basket_end[cut])
        candidates = batch.repeats.items[row][batch.repeat_weights[row] > 0]
        assert set(candidates.tolist()) <= set(found[basket[purchased[basket]]].tolist())
        recent = np.arange(half_wanted.user_start[cut], cut)[-batch.lengths[2] :]
        expected = np.where(purchased[recent + 1], found[recent + 1], -1)
        assert batch.next_items[row, -len(recent) :].tolist() == expected.tolist()


def test_recall_asks_for_what_is_wanted_alone(half_wanted: Histories, bundle: Bundle) -> None:
    cut = half_wanted.held_out_cuts[:1]
    basket = slice(int(cut[0]), int(half_wanted.basket_end[cut[0]]))
    best = bundle.catalogue.item_ids[bundle.catalogue.by_popularity()[:5]]
    wanted = np.unique(half_wanted.rows["item_id"][basket][half_wanted.are_targets[basket]])
    assert popularity_recall(half_wanted, bundle.catalogue, cut, 5) == np.isin(wanted, best).mean()


def test_kinds_are_checked() -> None:
    assert replace(SMALL, target_kinds=("purchase", "long_view")).target_kinds
    for name in ("dislike", "unspecified", "bought"):
        with pytest.raises(ModelConfigError, match=name):
            replace(SMALL, target_kinds=(name,))
