"""`gemstream train`: an event log in, a bundle out."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.bundle import print_health, print_report
from services.cli.options import ConfigOption
from services.cli.output import JsonOption, people, print_json
from services.errors import SettingsError
from services.settings import load_settings
from services.toml_config import read_toml, structure

if TYPE_CHECKING:
    from model.training.config import TrainConfig


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
    as_json: JsonOption = False,
) -> None:
    """Train a network on an event log and write a bundle."""
    overrides = {"minutes": minutes, "seed": seed}
    given = {name: value for name, value in overrides.items() if value is not None}
    report = _run(events, items, read_train_config(config, given), out)
    if as_json:
        print_json(report)
    else:
        print_health(report["tokenizer"])
        print_report(report)
        people.print(
            f"bundle {report['bundle_version']} in {out}, {report['seconds']} s", highlight=False
        )


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


def _run(events: Path, items: Path | None, config: "TrainConfig", out: Path) -> dict[str, Any]:
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from model.training.train import train as run_training
    from state.event_log import read_event_log

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=people) as progress:
        reading = progress.add_task(f"reading {events.name}", total=1)
        log = read_event_log(events)
        progress.advance(reading)
        return run_training(log, items, config, out, progress)
