"""A run that was killed goes on behind what it finished, and takes no answer of another question."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from bench.quality import code_version as versions, compare as comparing, registry, results
from bench.quality.compare import Run, compare
from bench.quality.metrics import METRICS
from bench.quality.results import Question
from bench.quality.tables import show
from bench.quality.task import Budget, ItemIds, Task
from model.training.histories import Index
from tests.bench.quality_tasks import random_rows, time_split_task

TASK = time_split_task(random_rows(3), 20, 30)
ROOT = Path(__file__).parents[2]


class Shuffled:
    """Any items; counts how often it learns."""

    fitted: int = 0
    name = "shuffled"

    def fit(self, task: Task, budget: Budget) -> None:
        Shuffled.fitted += 1
        self._random = np.random.default_rng(budget.seed)

    def rank(self, task: Task, cuts: Index) -> Iterator[ItemIds]:
        for _ in cuts:
            yield self._random.permutation(task.items.item_ids)

    def details(self) -> dict[str, Any]:
        return {"level_hit_rate": [0.5, 0.25]}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    Shuffled.fitted = 0
    monkeypatch.setattr(results, "CACHE", tmp_path)
    monkeypatch.setitem(registry.RANKERS, "shuffled", "bench.quality.ties:best_places")
    monkeypatch.setattr(comparing, "make_ranker", lambda name: Shuffled())
    budget = Budget(minutes=1)
    return Run(["popularity", "shuffled"], [0, 1], budget, fresh=False, tell=lambda _: None)


def test_finished_rankers_are_not_asked_again(run: Run) -> None:
    first = compare(run, TASK, TASK.cuts)
    assert Shuffled.fitted == 4
    assert compare(run, TASK, TASK.cuts) == first
    assert Shuffled.fitted == 4
    compare(replace(run, fresh=True), TASK, TASK.cuts)
    assert Shuffled.fitted == 8


@pytest.mark.parametrize(
    "other",
    [
        {"budget": Budget(minutes=2)},
        {"budget": Budget(minutes=1, num_threads=2)},
        {"seeds": [5, 6]},
    ],
)
def test_another_question_is_asked(run: Run, other: dict[str, Any]) -> None:
    compare(run, TASK, TASK.cuts)
    compare(replace(run, **other), TASK, TASK.cuts)
    assert Shuffled.fitted == 8


def test_other_data_or_cuts_are_another_question(run: Run) -> None:
    question = Question(TASK, TASK.cuts, "popularity", "bench.quality.counts", Budget(1))
    others = [
        replace(question, cuts=TASK.cuts[1:]),
        replace(question, task=time_split_task(random_rows(4), 20, 30)),
        replace(question, task=replace(TASK, repeats=False)),
        replace(question, module="bench.quality.ties"),
    ]
    assert len({question.path, *(other.path for other in others)}) == 5


def test_half_a_file_is_no_answer(run: Run, tmp_path: Path) -> None:
    compare(run, TASK, TASK.cuts)
    for path in tmp_path.rglob("*.npz"):
        path.write_bytes(path.read_bytes()[:100])
    compare(run, TASK, TASK.cuts)
    assert Shuffled.fitted == 8


def test_figures_have_their_names_and_the_table_fits(run: Run) -> None:
    figures = compare(run, TASK, TASK.cuts)
    found = figures["shuffled"]
    assert {*METRICS, "minutes", "seeds", "interval"} < set(found)
    assert found["seeds"] == [0, 1]
    low, high = found["interval"]["recall_at_10"]
    assert low <= found["recall_at_10"] <= high
    assert found["details"][0]["level_hit_rate"] == [0.5, 0.25]
    assert set(found["difference_to"]) == {"popularity"}
    console = Console(width=100, record=True)
    show(console, "made_up", figures)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 100
    assert f"{found['ndcg_at_10']:.4f}".removeprefix("0") in text


def test_code_that_a_ranker_runs_is_part_of_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "bench"
    package.mkdir()
    (package / "one.py").write_text("from bench import two\nimport numpy\n")
    (package / "two.py").write_text("x = 1\n")
    (package / "three.py").write_text("x = 1\n")
    monkeypatch.setattr(versions, "ROOT", tmp_path)
    before = versions.code_version("bench.one")
    (package / "three.py").write_text("x = 2\n")
    assert versions.code_version("bench.one") == before
    (package / "two.py").write_text("x = 2\n")
    assert versions.code_version("bench.one") != before


def test_the_command_compares_a_log_of_ones_own(tmp_path: Path) -> None:
    rows = ["who,what,when"]
    for user, item, day in random_rows(0):
        rows.append(f"{user},{item},{1_600_000_000_000 + day * 86_400_000}")
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n")
    command = "-m bench.quality --events log.csv --rankers popularity,own_counts --seeds 0,1"
    columns = ["--columns", "user_id=who,item_id=what,event_time_ms=when"]
    done = subprocess.run(
        [sys.executable, *command.split(), *columns],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )
    figures = json.loads(done.stdout.splitlines()[-1])["figures"]["events"]
    assert figures["own_counts"]["recall_at_10"] > figures["popularity"]["recall_at_10"]
    assert "R@20 by history length" in done.stderr
