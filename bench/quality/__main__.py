"""How well rankers recommend on public data: the same cuts, protocol and budget for all."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from bench.quality import event_files
from bench.quality.compare import Run, compare
from bench.quality.describe import describe
from bench.quality.plots import draw
from bench.quality.registry import FAMILIES, RANKERS, TASKS, checked_names, load_task, make_ranker
from bench.quality.sources import DataSetUnusable
from bench.quality.tables import WIDTH, show
from bench.quality.task import Budget, Task
from bench.report import write_report
from model.errors import ModelError
from model.training.histories import Index

QUICK_BASKETS = 1_000
QUICK_RANKERS = "gemstream,popularity,own_counts_500,best_counts"
DEFAULT_RANKERS = f"{QUICK_RANKERS},tifuknn,boosted"

console = Console(stderr=True, width=WIDTH)


def main() -> None:
    """Load, ask, compare."""
    arguments = _parse_arguments()
    figures: dict[str, Any] = {"load_average": os.getloadavg()[0]}
    for name in [event_files.NAME] if arguments.events else arguments.sets:
        try:
            task = _load(name, arguments)
        except DataSetUnusable as error:
            sys.exit(f"{name}: {error}")
        if arguments.describe:
            figures[name] = _described(name, task)
            continue
        figures[name] = compare(_run_of(arguments), task, _cuts(task, arguments.baskets))
        show(console, name, figures[name])
        if arguments.plots:
            draw(figures[name], name, arguments.plots / f"{name}.svg")
    write_report("quality", arguments.quick, figures)


def _load(name: str, arguments: argparse.Namespace) -> Task:
    if not arguments.events:
        return load_task(name)
    return event_files.load_task(
        event_files.EventFiles(
            arguments.events, arguments.items, arguments.columns, arguments.protocol
        )
    )


def _parse_arguments() -> argparse.Namespace:
    parser = _parser()
    arguments = parser.parse_args()
    try:
        arguments.sets = checked_names(arguments.sets.split(","), TASKS, "data set")
        default = QUICK_RANKERS if arguments.quick else DEFAULT_RANKERS
        arguments.rankers = (arguments.rankers or default).split(",")
        for name in arguments.rankers:
            make_ranker(name)  # refuses unknown names before anything is trained
        arguments.seeds = [int(seed) for seed in arguments.seeds.split(",")]
        arguments.columns = event_files.parsed_columns(arguments.columns)
    except (ValueError, ModelError) as error:
        parser.error(str(error))
    arguments.minutes = arguments.minutes or (0.8 if arguments.quick else 4.0)
    if arguments.quick and arguments.baskets is None:
        arguments.baskets = QUICK_BASKETS
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench NAME=quality", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short training, fewer cuts")
    parser.add_argument("--sets", default="complete_journey", help=",".join(TASKS))
    parser.add_argument(
        "--rankers",
        help=f"{','.join([*RANKERS, *FAMILIES])}; default: {DEFAULT_RANKERS}, quick: {QUICK_RANKERS}",
    )
    parser.add_argument("--seeds", default="0", help="such as 0,1,2")
    parser.add_argument("--minutes", type=float, help="to learn; default: 4, quick: 0.8")
    parser.add_argument("--baskets", type=int, help="cuts drawn; default: all, quick: 1,000")
    parser.add_argument(
        "--scale",
        choices=("small", "full"),
        default="small",
        help="full: networks and steps for a GPU, which is used where there is one, or for hours",
    )
    parser.add_argument("--num-threads", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="take no result of an earlier run")
    parser.add_argument("--plots", type=Path, help="a directory for one SVG per set")
    parser.add_argument("--describe", action="store_true", help="statistics of the sets alone")
    own = parser.add_argument_group("your own data, in place of --sets")
    own.add_argument("--events", type=Path, help="Parquet or CSV, columns as `gemstream train`")
    own.add_argument("--items", type=Path, help="items file, as `gemstream train` reads it")
    own.add_argument("--columns", default="", help="other names, such as user_id=uid,item_id=sku")
    own.add_argument("--protocol", choices=("time-split", "leave-one-out"), default="time-split")
    return parser


def _run_of(arguments: argparse.Namespace) -> Run:
    return Run(
        rankers=arguments.rankers,
        seeds=arguments.seeds,
        budget=Budget(arguments.minutes, 0, arguments.num_threads, arguments.scale),
        fresh=arguments.fresh,
        tell=console.log,
    )


def _cuts(task: Task, num_cuts: int | None) -> Index:
    """In order of history length."""
    cuts = task.cuts
    if num_cuts is not None and num_cuts < len(cuts):
        cuts = np.random.default_rng(0).choice(cuts, num_cuts, replace=False)
    return task.histories.by_length(cuts)


def _described(name: str, task: Task) -> dict[str, Any]:
    found = describe(task)
    console.rule(name)
    for key, value in found.items():
        console.print(f"{key}: {value}", highlight=False)
    return found


if __name__ == "__main__":
    main()
