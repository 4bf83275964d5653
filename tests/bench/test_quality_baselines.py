"""Count baselines, TIFUKNN and boosting against plain loops, on made-up households."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from bench.quality.boosted import Boosted
from bench.quality.candidates import FEATURES, CandidateTable
from bench.quality.counts import Counts, TunedCounts, Weights, popularity_shares
from bench.quality.metrics import score
from bench.quality.rankings import as_table
from bench.quality.targets import find_targets
from bench.quality.task import Budget, Task
from bench.quality.tifuknn import TifuKnn, TifuKnnConfig, user_vectors
from state.item_statistics import DAY_MS, HALF_LIVES_DAYS
from tests.bench.quality_tasks import leave_one_out_task, random_rows, time_split_task

BUDGET = Budget(minutes=0.05)
BEFORE = list[tuple[int, int]]
"""Items and times of a history."""


def history(task: Task, cut: int) -> BEFORE:
    rows = task.histories.rows[int(task.histories.user_start[cut]) : cut]
    return list(zip(rows["item_id"].tolist(), rows["event_time_ms"].tolist(), strict=True))


WEIGHTS = st.builds(
    Weights,
    newest=st.sampled_from([None, 0, 3, 10]),
    half_life_days=st.sampled_from([None, 5.0]),
    base=st.sampled_from([0.0, 0.1]),
    popularity=st.sampled_from([0.5, 30.0]),
    popularity_days=st.sampled_from([None, 4.0]),
)


@given(WEIGHTS, st.booleans(), st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_counts_are_those_of_plain_loops(weights: Weights, repeats: bool, seed: int) -> None:
    task = time_split_task(random_rows(seed, num_users=4), 20, 30, repeats)
    ranker = Counts("counts", weights)
    ranker.fit(task, BUDGET)
    for cut, ranking in zip(task.cuts.tolist(), ranker.rank(task, task.cuts), strict=True):
        expected = plain_scores(task, weights, cut)
        if not repeats:
            expected = {i: s for i, s in expected.items() if i not in task.seen(cut)}
        found = [expected[int(item)] for item in ranking]
        assert found == pytest.approx(sorted(expected.values(), reverse=True)[:50])


def plain_scores(task: Task, weights: Weights, cut: int) -> dict[int, float]:
    trained = task.training.rows
    if weights.popularity_days is not None:
        newest = trained["event_time_ms"].max()
        trained = trained[trained["event_time_ms"] > newest - weights.popularity_days * DAY_MS]
    counts = Counter(trained["item_id"].tolist())
    scores = {
        int(item): counts[int(item)] / len(trained) * weights.popularity
        for item in task.items.item_ids
    }
    now = int(task.histories.rows["event_time_ms"][cut])
    rows = history(task, cut)
    if weights.newest is not None:
        rows = rows[len(rows) - min(weights.newest, len(rows)) :]
    for item, time in rows:
        half_life = weights.half_life_days
        fading = 1.0 if half_life is None else 2 ** (-(now - time) / DAY_MS / half_life)
        scores[item] += fading + (weights.base if half_life is not None else 0)
    return scores


def test_tuning_takes_what_is_best_on_validation() -> None:
    task = time_split_task(random_rows(5), 20, 30)
    ranker = TunedCounts()
    ranker.fit(task, BUDGET)
    targets = find_targets(task, task.validation_cuts)

    def ndcg(weights: Weights) -> float:
        lists = Counts("", weights).rank(task, task.validation_cuts)
        table = as_table(task, task.validation_cuts, lists)
        return float(score(task, targets, table).per_cut["ndcg_at_10"].mean())

    assert ndcg(ranker.weights) >= ndcg(Weights(half_life_days=14, popularity=10))
    assert ndcg(ranker.weights) >= ndcg(Weights(half_life_days=56, base=0.3, popularity=100))
    assert ranker.details()["half_life_days"] == ranker.weights.half_life_days


def plain_vector(task: Task, config: TifuKnnConfig, rows: BEFORE) -> np.ndarray:
    """Formulas 1 to 4 of the paper, group by group."""
    baskets = defaultdict(set)
    for item, time in rows:
        baskets[time].add(item)
    newest_first = [baskets[time] for time in sorted(baskets, reverse=True)]
    groups = [
        newest_first[i : i + config.group_size]
        for i in range(0, len(newest_first), config.group_size)
    ]
    vector = np.zeros(len(task.items.item_ids))
    for group_age, group in enumerate(groups):
        mean = np.zeros(len(vector))
        for age, basket in enumerate(group):
            mean += config.within_decay**age * np.isin(task.items.item_ids, list(basket))
        vector += config.between_decay**group_age * mean / len(group)
    return vector / max(len(groups), 1)


@given(st.integers(0, 100), st.integers(1, 4), st.integers(1, 5))
@settings(max_examples=15, deadline=None)
def test_tifuknn_is_that_of_plain_loops(seed: int, group_size: int, num_neighbours: int) -> None:
    task = time_split_task(random_rows(seed, num_users=6, num_days=30), 18, 24)
    config = TifuKnnConfig(group_size, 0.9, 0.7, num_neighbours, 0.6)
    trained = {
        user: plain_vector(task, config, history_of(task, user))
        for user in range(len(task.training.user_ids))
    }
    lists = TifuKnn(config).rank(task, task.cuts)
    shares = popularity_shares(task) * 1e-6
    for cut, ranking in zip(task.cuts.tolist(), lists, strict=True):
        own = plain_vector(task, config, history(task, cut))
        user = int(task.histories.users[cut])
        others = [vector for other, vector in trained.items() if other != user]
        nearest = sorted(others, key=lambda vector: float(((vector - own) ** 2).sum()))
        neighbours = np.mean(nearest[:num_neighbours], axis=0)
        expected = 0.6 * own + 0.4 * neighbours + shares
        places = np.searchsorted(task.items.item_ids, ranking)
        assert expected[places] == pytest.approx(np.sort(expected)[::-1][:50], abs=1e-6)


def history_of(task: Task, user: int) -> BEFORE:
    rows = task.training.rows[task.training.user_index == user]
    return list(zip(rows["item_id"].tolist(), rows["event_time_ms"].tolist(), strict=True))


def test_neighbours_are_known_as_of_the_trainings_end_alone() -> None:
    rows = random_rows(2)
    task = time_split_task(rows, 20, 30)
    changed = [(user, item if day < 20 else 1 + item % 30, day) for user, item, day in rows]
    other = time_split_task(changed, 20, 30)
    config = TifuKnnConfig()
    (_, before, users), (_, after, _) = user_vectors(task, config), user_vectors(other, config)
    assert (before != after).nnz == 0
    assert len(users) == before.shape[0]


def plain_features(task: Task, cut: int, item: int, known_until_ms: int) -> dict[str, float]:
    rows = history(task, cut)
    now = int(task.histories.rows["event_time_ms"][cut])
    times = [time for one, time in rows if one == item]
    days = sorted({time for _, time in rows})
    had = sorted(set(times))
    features: dict[str, float] = {
        f"count_{half_life}_days": sum(2 ** (-(now - t) / DAY_MS / half_life) for t in times)
        for half_life in HALF_LIVES_DAYS
    }
    features |= {"count": len(times), "history_length": len(rows), "baskets": len(days)}
    features["share_of_baskets"] = len(had) / max(len(days), 1)
    features["baskets_since_last"] = len(days) - days.index(had[-1]) if had else np.nan
    features["days_since_last"] = (now - had[-1]) / DAY_MS if had else np.nan
    interval = (had[-1] - had[0]) / (len(had) - 1) / DAY_MS if len(had) > 1 else np.nan
    features["mean_interval_days"] = interval
    features["since_last_over_interval"] = features["days_since_last"] / interval
    for hours in (24, 12, 8, 168, 84):
        fits = sum(np.cos(2 * np.pi * (now - t) / DAY_MS * 24 / hours) for t in times)
        features[f"fits_{hours}_hours"] = fits / (len(times) + 1)
    features["days_away"] = (now - rows[-1][1]) / DAY_MS if rows else 0
    public = task.histories.rows["event_time_ms"] < known_until_ms
    visits = defaultdict(set)
    counted, of_item = 0, 0
    for user, row in zip(task.histories.users[public], task.histories.rows[public], strict=True):
        if row["item_id"] == item:
            visits[int(user)].add(int(row["event_time_ms"]))
        if row["event_time_ms"] >= known_until_ms - 28 * DAY_MS:
            counted, of_item = counted + 1, of_item + (row["item_id"] == item)
    came_back = [len(baskets) > 1 for baskets in visits.values()]
    features["share_who_came_back"] = float(np.mean(came_back)) if came_back else np.nan
    features["popularity_4_weeks"] = of_item / counted
    return features


@pytest.mark.parametrize("seed", range(3))
def test_features_of_candidates_are_those_of_plain_loops(seed: int) -> None:
    task = time_split_task(random_rows(seed, num_users=3), 20, 30)
    known_until_ms = int(task.training.rows["event_time_ms"].max()) + 1
    found = CandidateTable(task, known_until_ms).at(task.cuts)
    assert (np.diff(found.row) >= 0).all()
    for number in range(0, len(found.row), 7):
        cut, item = int(task.cuts[found.row[number]]), int(task.items.item_ids[found.item[number]])
        plain = plain_features(task, cut, item, known_until_ms)
        for name, value in zip(FEATURES, found.features[number], strict=True):
            assert value == pytest.approx(plain[name], rel=1e-4, abs=1e-6, nan_ok=True), name


def test_boosting_learns_who_buys_weekly() -> None:
    """Item 1 to 5 come every seventh day, items 6 to 10 came often and never again."""
    rows = []
    for user in range(1, 41):
        phase = user % 7
        for day in range(120):
            if day % 7 == phase:
                rows += [(user, 1 + user % 5, day)]
            if day < 20:
                rows += [(user, 6 + user % 5, day)]
            rows += [(user, 11 + (user * 7 + day * 3) % 15, day)]
    task = time_split_task(rows, 100, 110)
    ranker = Boosted()
    ranker.fit(task, BUDGET)
    targets = find_targets(task, task.cuts)
    ndcg = {}
    for name, one in (("boosted", ranker), ("counts", Counts("counts", Weights()))):
        scores = score(task, targets, as_table(task, task.cuts, one.rank(task, task.cuts)))
        ndcg[name] = scores.per_cut["ndcg_at_10"].mean()
    assert ndcg["boosted"] > 1.2 * ndcg["counts"]
    assert ranker.details()["trees"] >= 1


def test_what_cannot_repeat_is_no_candidate() -> None:
    task = leave_one_out_task({user: [user, 2, 3, 4, 5, 6, 1][:6] for user in range(7, 20)})
    found = CandidateTable(task, 2**62).at(task.cuts)
    for row, item in zip(found.row, found.item, strict=True):
        assert task.items.item_ids[item] not in task.seen(int(task.cuts[row]))


def test_the_candidates_with_the_highest_counts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    task = time_split_task(random_rows(1), 20, 30)
    every = CandidateTable(task, 2**62).at(task.cuts)
    monkeypatch.setattr("bench.quality.candidates.NUM_KEPT", 5)
    kept = CandidateTable(task, 2**62).at(task.cuts)
    assert np.bincount(kept.row).tolist() == [5] * len(task.cuts)
    columns = [FEATURES.index(name) for name in ("count_56_days", "count", "popularity_4_weeks")]
    coarse = {}
    for name, found in (("every", every), ("kept", kept)):
        scores = found.features[:, columns] @ np.array([1, 0.1, 100])
        coarse[name] = [
            np.sort(scores[found.row == row])[::-1][:5] for row in range(len(task.cuts))
        ]
    assert np.array(coarse["kept"]) == pytest.approx(np.array(coarse["every"]))
