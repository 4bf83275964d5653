"""No target is trained on, cuts are where the protocol says, and every ranker is asked the same."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from bench.quality.events import make_event_log
from bench.quality.intervals import estimate
from bench.quality.metrics import METRICS, Scores, by_length, by_reach, score
from bench.quality.protocols import leave_one_out
from bench.quality.rankings import NONE, as_table
from bench.quality.targets import Targets, find_targets
from bench.quality.task import NUM_RANKED, Task
from bench.quality.ties import best_places
from model.catalogue import ItemTable
from state.interaction import DISLIKE_MASK
from state.item_statistics import DAY_MS
from tests.bench.quality_tasks import (
    START_MS,
    leave_one_out_task,
    random_rows,
    time_split_task,
)

SEQUENCES = st.dictionaries(
    st.integers(1, 9), st.lists(st.integers(1, 20), min_size=1, max_size=9), min_size=1
).filter(lambda found: any(len(items) >= 5 for items in found.values()))


@given(SEQUENCES)
@settings(max_examples=50, deadline=None)
def test_leave_one_out_tests_the_last_and_validates_the_one_before(
    sequences: dict[int, list[int]],
) -> None:
    task = leave_one_out_task(sequences)
    ids = task.histories.rows["item_id"]
    asked = {user: items for user, items in sequences.items() if len(items) >= 3}
    users = [int(task.training.user_ids[user]) for user in task.histories.users[task.cuts]]
    assert dict(zip(users, ids[task.cuts].tolist(), strict=True)) == {
        user: items[-1] for user, items in asked.items()
    }
    for cut, validation, user in zip(task.cuts, task.validation_cuts, users, strict=True):
        assert validation == cut - 1
        assert task.lengths(task.cuts)[users.index(user)] == len(asked[user]) - 1
        assert task.seen(int(cut)).tolist() == sorted(set(asked[user][:-1]))
    trained = defaultdict(list)
    for user, item in zip(task.training.user_index, task.training.rows["item_id"], strict=True):
        trained[int(task.training.user_ids[user])].append(int(item))
    assert trained == {
        user: items[:-2] if len(items) >= 3 else items for user, items in sequences.items()
    }


def test_a_time_split_trains_on_nothing_that_is_asked() -> None:
    task = time_split_task(random_rows(0), validation_day=20, test_day=30)
    times = task.histories.rows["event_time_ms"]
    day = (times - START_MS) // 86_400_000
    assert (task.training.rows["event_time_ms"] < times[task.validation_cuts].min()).all()
    assert set(day[task.validation_cuts]) <= set(range(20, 30))
    assert set(day[task.cuts]) <= set(range(30, 40))
    starts = {(int(user), int(when)) for user, when in zip(task.histories.users, day, strict=True)}
    assert len(task.cuts) == sum(when >= 30 for _, when in starts)
    assert task.items.counts.sum() == len(task.training.rows)


def lists_of(task: Task, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.permutation(task.items.item_ids)[:NUM_RANKED] for _ in task.cuts]


@given(st.integers(0, 1_000))
@settings(max_examples=20, deadline=None)
def test_metrics_are_those_of_plain_loops(seed: int) -> None:
    task = time_split_task(random_rows(seed, num_items=80), validation_day=20, test_day=30)
    table = as_table(task, task.cuts, lists_of(task, seed))
    found = score(task, find_targets(task, task.cuts), table).per_cut
    for row, cut in enumerate(task.cuts.tolist()):
        plain = plain_metrics(task, cut, table[row].tolist())
        for metric in METRICS:
            assert found[metric][row] == pytest.approx(plain[metric], nan_ok=True)


def plain_metrics(task: Task, cut: int, ranking: list[int]) -> dict[str, float]:
    basket = {int(item) for item in task.targets(cut)}
    new = basket - {int(item) for item in task.seen(cut)}
    figures = {f"recall_at_{k}": len(basket & set(ranking[:k])) / len(basket) for k in (10, 20, 50)}
    gain = sum(1 / np.log2(place + 2) for place, item in enumerate(ranking[:10]) if item in basket)
    ideal = sum(1 / np.log2(place + 2) for place in range(min(10, len(basket))))
    figures["ndcg_at_10"] = gain / ideal
    figures["new_recall_at_50"] = len(new & set(ranking)) / len(new) if new else np.nan
    return figures


@given(st.integers(0, 1_000))
@settings(max_examples=10, deadline=None)
def test_reach_is_the_distance_to_the_items_last_time(seed: int) -> None:
    task = time_split_task(random_rows(seed), validation_day=20, test_day=30)
    targets = find_targets(task, task.cuts)
    ids = task.histories.rows["item_id"]
    for row, item, reach in zip(targets.row, targets.item, targets.reach, strict=True):
        cut = int(task.cuts[row])
        start = int(task.histories.user_start[cut])
        before = ids[start:cut].tolist()[::-1]
        wanted = task.items.item_ids[item]
        assert reach == (before.index(wanted) + 1 if wanted in before else 0)
    pairs = [(row, item) for row, cut in enumerate(task.cuts) for item in task.targets(int(cut))]
    found = zip(targets.row, task.items.item_ids[targets.item], strict=True)
    assert [tuple(pair) for pair in found] == pairs


def test_items_that_are_not_ranked_are_nobodys_last_time() -> None:
    """Item 7 is not in the table; it lies where item 8 would be found."""
    task = time_split_task([(1, 7, 1), (1, 5, 2), (1, 8, 30)], validation_day=20, test_day=30)
    ranked = [place for place, item in enumerate(task.items.item_ids.tolist()) if item != 7]
    columns = ("item_ids", "author_ids", "tags", "durations_ms", "counts")
    kept = {name: getattr(task.items, name)[ranked] for name in columns}
    items = ItemTable(**kept, titles=[""] * len(ranked))
    targets = find_targets(replace(task, items=items), task.cuts)
    assert targets.new.tolist() == [True]


def test_buckets_of_reach_and_length_hold_their_targets() -> None:
    task = time_split_task(random_rows(1), validation_day=20, test_day=30)
    targets = find_targets(task, task.cuts)
    scores = score(task, targets, as_table(task, task.cuts, lists_of(task, 0)))
    found = by_reach(task, targets, scores.ranks, 20)
    recent = (targets.reach >= 1) & (targets.reach <= 4)
    assert found["targets"]["recent"] == recent.sum()
    assert found["targets"]["new"] == targets.new.sum()
    assert found["recall"]["recent"] == pytest.approx((scores.ranks[recent] < 20).mean(), abs=1e-4)
    assert sum(found["targets"].values()) == len(targets.row)
    recall = scores.per_cut["recall_at_20"]
    assert by_length(task, targets, recall)["10+"] == pytest.approx(
        recall[targets.lengths >= 10].mean(), abs=1e-4
    )


def test_a_disliked_last_item_is_not_asked_for() -> None:
    users, items = np.repeat([1, 2], 4), np.arange(1, 9)
    kinds = np.full(8, 2)
    kinds[[3, 6]] |= DISLIKE_MASK
    times = 10**12 + np.arange(8) * DAY_MS
    columns = {"item_id": items, "event_time_ms": times, "kinds": kinds}
    training, _, tested, validated = leave_one_out(make_event_log(users, columns))
    assert (tested.tolist(), validated.tolist()) == ([7], [2])
    assert training.rows["item_id"].tolist() == [1, 2, 5, 6]


def test_what_is_no_target_is_not_asked_for() -> None:
    task = time_split_task([(1, 1, 0), (1, 2, 1), (1, 3, 2), (1, 4, 3), (1, 5, 3)], 2, 3)
    histories = replace(task.histories, are_targets=task.histories.rows["item_id"] != 4)
    narrowed = replace(task, histories=histories)
    assert narrowed.targets(int(task.cuts[0])).tolist() == [5]
    targets = find_targets(narrowed, task.cuts)
    assert task.items.item_ids[targets.item].tolist() == [5]


def test_lists_lose_what_cannot_be_a_target_and_no_item_counts_twice() -> None:
    task = leave_one_out_task({1: [1, 2, 3, 4, 5, 6], 2: [6, 5, 4, 3, 2, 1]})
    every = task.items.item_ids
    table = as_table(task, task.cuts, [every, every[::-1]])
    assert table[0, :2].tolist() == [6, NONE]
    assert table[1, :2].tolist() == [1, NONE]
    with pytest.raises(ValueError, match="twice"):
        as_table(task, task.cuts, [np.array([1, 1], np.uint64)] * 2)
    with pytest.raises(ValueError, match="shorter"):
        as_table(task, task.cuts, [every])


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, -np.inf]), min_size=1), st.integers(1, 60))
def test_best_places_are_the_best_and_ties_are_drawn(scores: list[float], k: int) -> None:
    values = np.array(scores)
    best = best_places(values, k, seed=3, cut=5)
    assert best.tolist() == best_places(values, k, seed=3, cut=5).tolist()
    possible = sorted((value for value in scores if value > -np.inf), reverse=True)
    assert values[best].tolist() == possible[:k]
    assert len(set(best.tolist())) == len(best)


def test_every_tie_has_the_same_chance() -> None:
    values = np.array([1.0, 0, 0, 0, 0])
    seconds = [int(best_places(values, 2, seed=0, cut=cut)[1]) for cut in range(2_000)]
    counts = np.bincount(seconds, minlength=5)
    assert counts[0] == 0
    assert (np.abs(counts[1:] - 500) < 100).all()


def scores_of(values: np.ndarray) -> Scores:
    return Scores(dict.fromkeys(METRICS, values), np.empty(0, np.int64))


def users_of(users: np.ndarray) -> Targets:
    nothing = np.empty(0, np.int64)
    return Targets(nothing, nothing, nothing, users, nothing)


def test_intervals_take_a_users_cuts_together() -> None:
    random = np.random.default_rng(0)
    own_level = random.normal(size=200)
    alone = estimate(users_of(np.arange(200)), [scores_of(own_level)])
    repeated = estimate(users_of(np.repeat(np.arange(200), 10)), [scores_of(own_level.repeat(10))])
    low, high = alone.interval("ndcg_at_10")
    standard_error = own_level.std() / np.sqrt(200)
    assert high - low == pytest.approx(2 * 1.96 * standard_error, rel=0.15)
    assert repeated.interval("ndcg_at_10") == pytest.approx([low, high], abs=2e-3)
    assert alone.means["ndcg_at_10"] == pytest.approx(own_level.mean(), abs=1e-4)


def test_a_steady_difference_is_seen_through_the_noise_of_users_and_seeds_add_theirs() -> None:
    random = np.random.default_rng(1)
    users, values = users_of(np.arange(300)), random.normal(size=300)
    ours = estimate(users, [scores_of(values + 0.01)])
    theirs = estimate(users, [scores_of(values)])
    mean, low, high = ours.difference(theirs, "recall_at_20")
    assert mean == pytest.approx(0.01, abs=1e-4)
    assert low > 0.009
    assert high < 0.011
    seeds = estimate(users, [scores_of(values + shift) for shift in (-1, 0, 1)])
    narrow, wide = (np.ptp(found.interval("recall_at_20")) for found in (theirs, seeds))
    assert wide > 2 * narrow
    assert len(seeds.per_seed["recall_at_20"]) == 3


def test_cuts_without_a_value_do_not_count() -> None:
    values = np.array([1.0, np.nan, 0.0, np.nan])
    found = estimate(users_of(np.arange(4)), [scores_of(values)])
    assert found.means["new_recall_at_50"] == 0.5
