"""How well rankers recommend on public data, the same cuts for all."""

import argparse
import os
import sys
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.quality.metrics import Metrics
from bench.quality.rankings import as_table
from bench.quality.registry import RANKERS, TASKS, checked_names, load_task, make_ranker
from bench.quality.sources import DataSetUnusable
from bench.quality.task import Budget, Task
from bench.report import write_report
from model.training.histories import Index

QUICK_BASKETS = 1_000
COLUMNS = ("recall_at_10", "recall_at_20", "recall_at_50", "ndcg_at_10", "new_recall_at_50")

console = Console(stderr=True)


def main() -> None:
    """Fit, rank, compare."""
    arguments = _parse_arguments()
    figures = {}
    for name in arguments.sets:
        try:
            task = load_task(name)
        except DataSetUnusable as error:
            sys.exit(str(error))
        cuts = task.cuts
        if arguments.baskets:
            cuts = np.random.default_rng(0).choice(cuts, arguments.baskets, replace=False)
        figures[name] = _compare(arguments, task, task.histories.by_length(cuts))
        _show(name, figures[name])
    write_report("quality", arguments.quick, {**figures, "load_average": os.getloadavg()[0]})


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench NAME=quality", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short training, fewer baskets")
    parser.add_argument("--sets", default="complete_journey")
    parser.add_argument("--rankers", default="popularity,own_counts_500,best_counts,gemstream")
    parser.add_argument("--minutes", type=float, help="of training; default: 4, quick: 0.8")
    parser.add_argument("--baskets", type=int, help="how many; default: all, quick: 1,000")
    parser.add_argument("--num-threads", type=int, default=2)
    arguments = parser.parse_args()
    arguments.minutes = arguments.minutes or (0.8 if arguments.quick else 4.0)
    arguments.sets = checked_names(arguments.sets.split(","), TASKS, "data set")
    arguments.rankers = checked_names(arguments.rankers.split(","), RANKERS, "ranker")
    if arguments.quick and arguments.baskets is None:
        arguments.baskets = QUICK_BASKETS
    return arguments


def _compare(arguments: argparse.Namespace, task: Task, cuts: Index) -> dict[str, Any]:
    figures = {}
    for name in arguments.rankers:
        start = time.monotonic()
        ranker = make_ranker(name)
        ranker.fit(task, Budget(arguments.minutes, 0, arguments.num_threads))
        metrics = Metrics(task)
        metrics.add_all(cuts, as_table(task, cuts, ranker.rank(task, cuts)))
        minutes = round((time.monotonic() - start) / 60, 2)
        figures[name] = {**metrics.figures(), "minutes": minutes}
    return figures


def _show(title: str, figures: dict[str, Any]) -> None:
    table = Table("ranker", *COLUMNS, "minutes", "recall_at_20 by history length", title=title)
    for name, of_ranker in figures.items():
        cells = [f"{of_ranker[column]:.4f}" for column in COLUMNS]
        lengths = ", ".join(f"{k}: {v:.3f}" for k, v in of_ranker["recall_at_20_by_length"].items())
        table.add_row(name, *cells, f"{of_ranker['minutes']:.1f}", lengths)
    console.print(table)


if __name__ == "__main__":
    main()
