"""The synthetic stream in the harness: what trains and tests, whose cause is what, what the oracle is worth."""

from pathlib import Path

import numpy as np
import pytest

from bench.quality.counts import recent_counts
from bench.quality.metrics import by_stratum, score
from bench.quality.rankings import as_table
from bench.quality.synthetic import synthetic_task
from bench.quality.synthetic.event_stream import topics_of
from bench.quality.synthetic.lives import live
from bench.quality.synthetic.rankers import OracleRanker
from bench.quality.synthetic.stream_config import CAUSES, LIFECYCLE, SESSION, StreamConfig
from bench.quality.synthetic.synthetic_task import SEGMENTS, SyntheticTask, make_task
from bench.quality.targets import find_targets
from bench.quality.task import Budget, Task

SMALL = StreamConfig(num_users=24, min_length=600, max_length=1_000)


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SyntheticTask:
    monkeypatch.setattr(synthetic_task, "CACHE", tmp_path)
    return make_task("synthetic", SMALL)


def by_cause(
    task: SyntheticTask, cuts: np.ndarray, table: np.ndarray
) -> dict[str, dict[str, float]]:
    targets = find_targets(task, cuts)
    return by_stratum(task, cuts, targets, score(task, targets, table).ranks)


def test_rows_carry_their_truth(task: SyntheticTask) -> None:
    histories = task.histories
    for user in range(SMALL.num_users):
        life = live(SMALL, topics_of(SMALL), user)
        rows = histories.users == user
        assert (histories.rows["item_id"][rows] == (life.items + 1).astype(np.uint64)).all()
        assert (task.causes[rows] == life.causes).all()
        assert (task.reaches[rows] == life.reaches).all()


def test_nothing_behind_a_users_first_asked_cut_trains(task: SyntheticTask) -> None:
    trained, histories = task.training, task.histories
    for user, name in enumerate(trained.user_ids):
        assert name == f"user-{user:06d}"
        last = trained.rows["event_time_ms"][trained.user_index == user].max()
        for cuts in (task.validation_cuts, task.cuts):
            own = cuts[histories.users[cuts] == user]
            assert (histories.rows["event_time_ms"][own] > last).all()
    assert not set(task.validation_cuts.tolist()) & set(task.cuts.tolist())
    assert set(CAUSES[1:]) == {CAUSES[cause] for cause in task.causes[task.cuts].tolist()}


def test_lifecycle_causes_lie_in_the_lifecycle_segment(task: SyntheticTask) -> None:
    cuts = task.cuts[task.causes[task.cuts] == LIFECYCLE]
    assert len(cuts) > 10
    for cut, reach, length in zip(cuts, task.reaches[cuts], task.lengths(cuts), strict=True):
        start = task.histories.user_start[cut]
        assert cut - reach < start + SEGMENTS.lifecycle_boundary(int(length))


def test_the_oracle_beats_counts_and_sessions_are_easy(task: SyntheticTask) -> None:
    figures = {}
    for ranker in (OracleRanker(), recent_counts()):
        ranker.fit(task, Budget(minutes=1))
        table = as_table(task, task.cuts, ranker.rank(task, task.cuts))
        figures[ranker.name] = by_cause(task, task.cuts, table)
    of_oracle, of_counts = figures["oracle"], figures["recent_counts"]
    assert of_oracle["session"]["recall_at_20"] > 0.9
    assert of_oracle["lifecycle"]["recall_at_20"] > 0.5
    assert of_counts["lifecycle"]["recall_at_20"] < 0.2
    assert of_oracle["session"]["targets"] == (task.causes[task.cuts] == SESSION).sum()


def test_figures_by_cause(task: SyntheticTask) -> None:
    """Against plain loops, for lists that hold every other target in place 16."""
    cuts = task.cuts[:60]
    table = np.zeros((len(cuts), 50), np.uint64)
    ids = task.histories.rows["item_id"][cuts]
    table[::2, 15] = ids[::2]
    figures = by_cause(task, cuts, table)
    for cause in set(task.causes[cuts].tolist()):
        hits = [i % 2 == 0 for i, cut in enumerate(cuts) if task.causes[cut] == cause]
        of_cause = figures[CAUSES[cause]]
        assert of_cause["targets"] == len(hits)
        had = [task.seen(cut) for cut in cuts.tolist() if task.causes[cut] == cause]
        mine = ids[task.causes[cuts] == cause]
        new = [hit for hit, seen, item in zip(hits, had, mine, strict=True) if item not in seen]
        assert of_cause["new_targets"] == len(new)
        assert of_cause["new_recall_at_20"] == pytest.approx(np.mean(new) if new else 0)
        assert of_cause["recall_at_10"] == 0
        assert of_cause["recall_at_20"] == pytest.approx(np.mean(hits))


def test_other_tasks_are_refused() -> None:
    class Other:
        name = "ml1m"

    other: Task = Other()  # type: ignore[assignment]
    with pytest.raises(TypeError, match="ml1m is not a synthetic stream"):
        OracleRanker().rank(other, np.array([1]))
