"""`gemstream train`: an event log in, a bundle out."""

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.bundle import print_health, print_report
from services.cli.options import ConfigOption
from services.cli.output import JsonOption, people, print_error, print_json
from services.errors import SettingsError
from services.settings import load_settings
from services.toml_config import read_toml, structure

if TYPE_CHECKING:
    from rich.progress import Progress

    from model.training.config import TrainConfig


@dataclass(frozen=True)
class _Asked:
    """What the command line says, and when it did, by the monotonic clock."""

    events: Path
    items: Path | None
    out: Path
    directory: Path
    restart: bool
    began_s: float


def train(
    events: Annotated[Path, typer.Argument(help="Event log, .parquet or .csv.")],
    out: Annotated[Path, typer.Option(help="Directory of the bundle.")],
    items: Annotated[
        Path | None, typer.Option(help="Items file, .parquet or .csv: authors, tags, titles.")
    ] = None,
    config: ConfigOption = None,
    minutes: Annotated[
        float | None, typer.Option(help="Wall-clock budget, everything included.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all randomness.")] = None,
    run: Annotated[
        Path | None,
        typer.Option(help="Directory of checkpoint and metrics; default: OUT.run beside OUT."),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin again instead of resuming an unfinished run.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a network on an event log and write a bundle.

    Stopped by a signal or a crash, the same command goes on from its last checkpoint. Several processes: torchrun
    --nproc-per-node N -m services.cli train ...
    """
    began_s = time.monotonic()
    overrides = {"minutes": minutes, "seed": seed}
    given = {name: value for name, value in overrides.items() if value is not None}
    directory = run or out.with_name(f"{out.name}.run")
    train_config = read_train_config(config, given)
    report = _run(_Asked(events, items, out, directory, restart, began_s), train_config)
    if not report:  # not the first of several processes
        return
    if as_json:
        print_json(report)
    else:
        print_health(report["tokenizer"])
        print_report(report)
        people.print(
            f"bundle {report['bundle_version']} in {out}, {report['seconds']} s", highlight=False
        )
        _print_run(report["run"])


def read_train_config(path: Path | None, overrides: dict[str, Any]) -> "TrainConfig":
    """`[train]` and `[history]` of a settings file that is right as a whole, then `overrides`.

    Raises SettingsError, ModelConfigError.
    """
    from model.training.config import TrainConfig

    settings = load_settings(path, {})
    config = TrainConfig()
    if path is not None:
        table = read_toml(path).get("train", {})
        config = structure(path, table, TrainConfig, prefix="train")
        if config.items.vectors is not None:
            vectors = path.parent / config.items.vectors
            config = replace(config, items=replace(config.items, vectors=vectors))
        if "history" in table:
            raise SettingsError(
                f"{path}: train.history: segments are cut alike in training and serving; move it to [history]"
            )
    return replace(config, history=settings.history, **overrides)


def _run(asked: _Asked, config: "TrainConfig") -> dict[str, Any]:
    from model.errors import TrainingStopped
    from model.training.data_parallel import joined_workers
    from model.training.memory import memory_errors
    from model.training.run_directory import RunDirectory
    from model.training.train import RunPlace, train as run_training
    from state.event_log import read_event_log

    with joined_workers() as workers, ExitStack() as held:
        directory = RunDirectory(asked.directory)
        if workers.is_first:
            held.enter_context(directory.claim())
            if asked.restart:
                directory.forget_checkpoint()
        progress = held.enter_context(_progress(disable=not workers.is_first))
        reading = progress.add_task(f"reading {asked.events.name}", total=1)
        log = read_event_log(asked.events)
        progress.advance(reading)
        place = RunPlace(asked.directory, workers, asked.began_s)
        try:
            with memory_errors(config):
                return run_training(log, asked.items, config, asked.out, progress, place)
        except TrainingStopped as stopped:
            if workers.is_first:
                progress.stop()
                print_error(stopped)
            raise typer.Exit(128 + stopped.signal_number) from None


def _progress(disable: bool) -> "Progress":
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=people, disable=disable)


def _print_run(run: dict[str, str | None]) -> None:
    """Where the metrics are, and what else there would be."""
    people.print(f"metrics of every step in {run['metrics']}", highlight=False)
    for name, extra in (("plot", "matplotlib"), ("tensorboard", "tensorboardX")):
        found = run[name] or f"none: {extra} is not installed (pip install {extra})"
        people.print(f"{name}: {found}", highlight=False)
