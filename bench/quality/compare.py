"""Asks each ranker under each seed, unless its answer is kept, and makes figures of the answers."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.quality.intervals import Estimate, estimate
from bench.quality.metrics import METRICS, Scores, by_length, by_reach, by_stratum, score
from bench.quality.rankings import NONE, as_table
from bench.quality.registry import make_ranker, module_of
from bench.quality.results import Question, Result, load_result, save_result
from bench.quality.targets import Targets, find_targets
from bench.quality.task import Budget, Detailed, Task
from model.training.histories import Index

RECALL_AT = 20
"""By length and by reach."""


@dataclass(frozen=True)
class Run:
    """What is asked of every ranker."""

    rankers: list[str]
    seeds: list[int]
    budget: Budget
    fresh: bool
    """Kept results are not taken."""
    tell: Callable[[str], None]


def compare(run: Run, task: Task, cuts: Index) -> dict[str, Any]:
    """Figures by ranker; each names its differences to the first one of `run.rankers`."""
    targets = find_targets(task, cuts)
    figures, estimates = dict[str, Any](), dict[str, Estimate]()
    for name in run.rankers:
        results = [_answer(run, task, cuts, name, seed) for seed in run.seeds]
        seeds = [score(task, targets, result.table) for result in results]
        estimates[name] = estimate(targets, seeds)
        figures[name] = {
            **_figures(run, estimates[name], results),
            **_buckets(task, targets, seeds),
            **_strata(task, cuts, targets, seeds),
            "baskets": len(cuts),
            "users": len(np.unique(targets.users)),
        }
    first = run.rankers[0]
    for name, found in estimates.items():
        if name != first:
            differences = {metric: found.difference(estimates[first], metric) for metric in METRICS}
            figures[name]["difference_to"] = {first: differences}
    without_nan: dict[str, Any] = _without_nan(figures)
    return without_nan


def _answer(run: Run, task: Task, cuts: Index, name: str, seed: int) -> Result:
    budget = replace(run.budget, seed=seed)
    ranker = make_ranker(name)
    question = Question(task, cuts, ranker.name, module_of(name), budget)
    kept = None if run.fresh else load_result(question)
    if kept is not None:
        run.tell(f"{task.name}, {name}, seed {seed}: kept from an earlier run")
        return kept
    run.tell(f"{task.name}, {name}, seed {seed}: {len(cuts):,} cuts")
    start = time.monotonic()
    ranker.fit(task, budget)
    fitted = time.monotonic()
    table = as_table(task, cuts, ranker.rank(task, cuts))
    details = ranker.details() if isinstance(ranker, Detailed) else {}
    result = Result(table, (fitted - start) / 60, (time.monotonic() - fitted) / 60, details)
    save_result(question, result)
    return result


def _figures(run: Run, found: Estimate, results: list[Result]) -> dict[str, Any]:
    fit_minutes = float(np.mean([result.fit_minutes for result in results]))
    rank_minutes = float(np.mean([result.rank_minutes for result in results]))
    short = [(result.table[:, -1] == NONE).mean() for result in results]
    return {
        **{metric: round(mean, 4) for metric, mean in found.means.items()},
        "minutes": round(fit_minutes + rank_minutes, 2),
        "fit_minutes": round(fit_minutes, 2),
        "seeds": run.seeds,
        "per_seed": found.per_seed,
        "interval": {metric: found.interval(metric) for metric in METRICS},
        "short_lists": round(float(np.mean(short)), 4),
        "details": [result.details for result in results],
    }


def _buckets(task: Task, targets: Targets, seeds: list[Scores]) -> dict[str, Any]:
    """Means over seeds."""
    name = f"recall_at_{RECALL_AT}"
    lengths = [by_length(task, targets, scores.per_cut[name]) for scores in seeds]
    reaches = [by_reach(task, targets, scores.ranks, RECALL_AT) for scores in seeds]
    return {
        f"{name}_by_length": _mean_of(lengths),
        f"{name}_by_reach": _mean_of([reach["recall"] for reach in reaches]),
        "targets_by_reach": _mean_of([reach["targets"] for reach in reaches]),
    }


def _strata(task: Task, cuts: Index, targets: Targets, seeds: list[Scores]) -> dict[str, Any]:
    """Means over seeds; nothing where the task tells no strata."""
    found = [by_stratum(task, cuts, targets, scores.ranks) for scores in seeds]
    by_name = {name: _mean_of([one[name] for one in found]) for name in found[0]}
    return {"by_stratum": by_name} if by_name else {}


def _mean_of(found: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(float(np.mean([one[name] for one in found])), 4) for name in found[0]}


def _without_nan(found: Any) -> Any:
    """JSON knows no nan: None where there was nothing to measure."""
    if isinstance(found, dict):
        return {name: _without_nan(value) for name, value in found.items()}
    if isinstance(found, list):
        return [_without_nan(value) for value in found]
    return None if isinstance(found, float) and np.isnan(found) else found
