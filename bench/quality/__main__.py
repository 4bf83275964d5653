"""Quality on Complete Journey: our ranker and count baselines, the same baskets for all."""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.quality.baselines import BASELINES
from bench.quality.complete_journey import CACHE, Task, load_task
from bench.quality.gemstream_ranker import rank, train_bundle, with_all_items
from bench.quality.metrics import Metrics
from bench.report import write_report
from model.bundle import load_bundle
from model.training.histories import Index

QUICK_BASKETS = 1_000
COLUMNS = ("recall_at_10", "recall_at_20", "recall_at_50", "ndcg_at_10", "new_recall_at_50")

console = Console(stderr=True)


def main() -> None:
    """Train, rank, compare."""
    arguments = _parse_arguments()
    task = load_task()
    cuts = task.cuts
    if arguments.baskets:
        cuts = np.random.default_rng(0).choice(cuts, arguments.baskets, replace=False)
    by_length = np.argsort(cuts - task.histories.user_start[cuts], kind="stable")
    figures = _compare(arguments, task, cuts[by_length])
    _show(figures)
    figures_of_set = {"complete_journey": figures, "load_average": os.getloadavg()[0]}
    write_report("quality", arguments.quick, figures_of_set)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench NAME=quality", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short training, fewer baskets")
    parser.add_argument("--minutes", type=float, help="of training; default: 4, quick: 0.8")
    parser.add_argument("--baskets", type=int, help="how many; default: all, quick: 1,000")
    parser.add_argument("--beam-width", type=int, default=64)
    parser.add_argument("--num-threads", type=int, default=2)
    parser.add_argument("--bundle", type=Path, help="rank with this one instead of training")
    arguments = parser.parse_args()
    arguments.minutes = arguments.minutes or (0.8 if arguments.quick else 4.0)
    if arguments.quick and arguments.baskets is None:
        arguments.baskets = QUICK_BASKETS
    return arguments


def _compare(arguments: argparse.Namespace, task: Task, cuts: Index) -> dict[str, Any]:
    figures = {}
    for name, baseline in BASELINES.items():
        start = time.monotonic()
        metrics = Metrics(task.histories, task.items.item_ids)
        metrics.add_all(cuts, baseline.rank(task, cuts))
        figures[name] = {**metrics.figures(), "minutes": _minutes_since(start)}
    start = time.monotonic()
    bundle = (
        load_bundle(arguments.bundle)
        if arguments.bundle
        else train_bundle(task, arguments.minutes, arguments.num_threads, CACHE / "quality-bundle")
    )
    bundle = with_all_items(bundle, task)
    metrics = Metrics(task.histories, task.items.item_ids)
    with Progress(console=console) as progress:
        metrics.add_all(cuts, rank(bundle, task, cuts, arguments.beam_width, progress))
    figures["gemstream"] = {**metrics.figures(), "minutes": _minutes_since(start)}
    return figures


def _minutes_since(start: float) -> float:
    return round((time.monotonic() - start) / 60, 2)


def _show(figures: dict[str, Any]) -> None:
    table = Table("ranker", *COLUMNS, "minutes", "recall_at_20 by history length")
    for name, of_ranker in figures.items():
        cells = [f"{of_ranker[column]:.4f}" for column in COLUMNS]
        lengths = ", ".join(f"{k}: {v:.3f}" for k, v in of_ranker["recall_at_20_by_length"].items())
        table.add_row(name, *cells, f"{of_ranker['minutes']:.1f}", lengths)
    console.print(table)


if __name__ == "__main__":
    main()
