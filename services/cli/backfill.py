"""`gemstream store backfill|recompress`: states and summaries made offline, on Ray, for state nodes to take."""

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from services.cli.options import BundleOption, ConfigOption
from services.cli.output import JsonOption, bytes_text, people, print_json, print_text
from services.settings import Settings, load_settings

if TYPE_CHECKING:
    from services.backfill_job import BackfillPlan

RayAddressOption = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        help="A Ray cluster, such as head:6379 or ray://head:10001; its machines have Gemstream installed and see the "
        "same paths. Default: this machine.",
        envvar="RAY_ADDRESS",
    ),
]
NumCpusOption = Annotated[
    int | None,
    typer.Option("--num-cpus", min=1, help="Processes on this machine. Default: one per core."),
]
UriOption = Annotated[
    str | None,
    typer.Option("--to", help="Directory or s3://bucket/prefix. Default: `uri` in \\[backfills]."),
]


def backfill(
    histories: Annotated[
        Path,
        typer.Argument(
            exists=True,
            file_okay=False,
            help="Directory of event logs, .parquet or .csv, with the columns that `gemstream produce` reads. Together "
            "they are one log, in event-time order.",
        ),
    ],
    summaries: Annotated[
        bool, typer.Option(help="Compress lifecycle segments with the bundle, too.")
    ] = True,
    to: UriOption = None,
    bundle: BundleOption = None,
    config: ConfigOption = None,
    ray_address: RayAddressOption = None,
    num_cpus: NumCpusOption = None,
    as_json: JsonOption = False,
) -> None:
    r"""Make ready states and summaries of old histories, without Kafka.

    They are written to `uri` in \[backfills]. State nodes with that setting take them, at their start or while they run, as
    if they had come before all events of the same users: nothing live is overwritten, what was deleted stays deleted.
    Give events the ids that producers gave them, so that those that came through Kafka, too, count once. The same
    command again goes on where it was stopped.
    """
    from services.backfill_job import plan_histories

    settings = _settings(config, bundle, to)
    version = _bundle_version(settings.bundle) if summaries else None
    _run(
        plan_histories(settings, histories, bundle_version=version), ray_address, num_cpus, as_json
    )


def recompress(
    again: Annotated[
        bool, typer.Option("--again", help="Make all anew where this bundle's are there already.")
    ] = False,
    to: UriOption = None,
    bundle: BundleOption = None,
    config: ConfigOption = None,
    ray_address: RayAddressOption = None,
    num_cpus: NumCpusOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make every user's summary under a bundle, from the newest checkpoints.

    State nodes take the summaries as they take backfills, each only where it says more than what is stored and nothing
    was deleted since the checkpoint. The same command again goes on where it was stopped.
    """
    from services.backfill_job import plan_summaries

    settings = _settings(config, bundle, to)
    version = _bundle_version(settings.bundle)
    plan = plan_summaries(settings, bundle_version=version, again=again)
    _run(plan, ray_address, num_cpus, as_json)


def _settings(config: Path | None, bundle: Path | None, to: str | None) -> Settings:
    settings = load_settings(config, {"bundle": bundle})
    # Tasks may run elsewhere than here.
    settings = replace(settings, bundle=settings.bundle.absolute())
    backfills = settings.backfills if to is None else replace(settings.backfills, uri=to)
    checkpoints = settings.checkpoints.relative_to(Path.cwd())
    return replace(settings, backfills=backfills.relative_to(Path.cwd()), checkpoints=checkpoints)


def _bundle_version(path: Path) -> str:
    from model.bundle_manifest import read_manifest

    version, _ = read_manifest(path)
    return version


def _run(
    plan: "BackfillPlan", ray_address: str | None, num_cpus: int | None, as_json: bool
) -> None:
    from services.backfill_ray import run_plan
    from services.wiring.stores import backfill_repository

    started_at_s = time.monotonic()
    with _Steps() as steps:
        made = run_plan(plan, ray_address, num_cpus, steps.show)
    result = {
        "backfill": plan.name,
        "partitions": len(plan.partitions),
        "partitions_there_before": plan.num_there,
        **asdict(made),
        "seconds": round(time.monotonic() - started_at_s, 3),
        "starting_seconds": round(steps.first_at_s - started_at_s, 3),
    }
    if as_json:
        print_json(result)
        return
    shown_uri = backfill_repository(plan.settings).shown_uri
    print_text(
        f"{plan.name} in {shown_uri}: {len(plan.partitions)} partitions made"
        + (f" ({plan.num_there} were there)" if plan.num_there else "")
        + f", {made.users} users, {made.interactions} interactions, {made.summaries} summaries, "
        f"{bytes_text(made.bytes)} in {result['seconds']} s"
    )


class _Steps:
    """A bar per step, for people. Use as a context manager."""

    def __init__(self) -> None:
        bars = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._progress = Progress(*bars, TimeElapsedColumn(), console=people)
        self._bars: dict[str, TaskID] = {}
        self.first_at_s = time.monotonic()
        """When the first step began: Ray is there."""

    def __enter__(self) -> Self:
        self._progress.start()
        self._bars["start"] = self._progress.add_task("starting Ray", total=1)
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, what: str, done: int, total: int) -> None:
        if len(self._bars) == 1:
            self.first_at_s = time.monotonic()
            self._progress.update(self._bars["start"], completed=1)
        if what not in self._bars:
            self._bars[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._bars[what], completed=done)
