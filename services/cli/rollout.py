"""`gemstream store rollout`: summaries of the next bundle for all users, and an end to those of the last one."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from protos import rollout_pb2
from services.channels import Target
from services.cli.each_node import ask_each
from services.cli.options import ConfigOption, TimeoutOption, state_address
from services.cli.output import JsonOption, age_text, print_table
from services.rollout_client import RolloutClient

app = typer.Typer(
    help="Summaries of the next bundle for all users, and an end to those of the last one.",
    no_args_is_help=True,
)

VersionArgument = Annotated[
    str, typer.Argument(help="The bundle's version, or its directory.", metavar="BUNDLE_VERSION")
]
StatesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        help="A state node; may be repeated: each concerns the partitions it serves. Default: the settings'.",
        envvar="GEMSTREAM_STATE",
    ),
]
RateOption = Annotated[
    float, typer.Option("--rate", min=0.001, help="Users per second of each node.")
]


@app.command()
def start(
    version: VersionArgument,
    rate: RateOption = 500.0,
    config: ConfigOption = None,
    state: StatesOption = None,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Owe every user a summary of a bundle; its workers (`run compression-worker --bundle candidate`) make them.

    Again: another rate, and partitions that were served elsewhere then.
    """
    of = _version(version)
    _each(lambda client: client.start(of, rate), state, config, timeout, as_json)


@app.command()
def status(
    config: ConfigOption = None,
    state: StatesOption = None,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Show how far rollouts and retirements are."""
    _each(RolloutClient.describe, state, config, timeout, as_json)


@app.command()
def pause(
    version: VersionArgument,
    config: ConfigOption = None,
    state: StatesOption = None,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Mark nobody until `resume`; who is marked already, or moves on, is compressed all the same."""
    of = _version(version)
    _each(lambda client: client.pause(of), state, config, timeout, as_json)


@app.command()
def resume(
    version: VersionArgument,
    config: ConfigOption = None,
    state: StatesOption = None,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Go on after a pause."""
    of = _version(version)
    _each(lambda client: client.resume(of), state, config, timeout, as_json)


@app.command()
def stop(
    version: VersionArgument,
    config: ConfigOption = None,
    state: StatesOption = None,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Give a rollout up: nothing more is owed of the bundle. `retire` removes what is there."""
    of = _version(version)
    _each(lambda client: client.stop(of), state, config, timeout, as_json)


@app.command()
def retire(
    version: VersionArgument,
    rate: RateOption = 5_000.0,
    config: ConfigOption = None,
    state: StatesOption = None,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Remove all summaries of a bundle that no inference node serves and no worker compresses with any more.

    A rollout that has marked all users ends with this: its bundle is the one in use.
    """
    of = _version(version)
    _each(lambda client: client.retire(of, rate), state, config, timeout, as_json)


def _version(given: str) -> str:
    from model.bundle_manifest import read_manifest

    return read_manifest(Path(given))[0] if Path(given).is_dir() else given


def _each(
    call: Callable[[RolloutClient], rollout_pb2.Rollouts],
    addresses: list[str] | None,
    config: Path | None,
    timeout_s: float,
    as_json: bool,
) -> None:
    given: Sequence[str | None] = addresses or [None]

    def ask(target: Target) -> rollout_pb2.Rollouts:
        with RolloutClient(target, timeout_s) as client:
            return call(client)

    ask_each([state_address(each, config) for each in given], ask, _show, as_json=as_json)


def _show(address: str, rollouts: rollout_pb2.Rollouts) -> None:
    rows: list[Sequence[object]] = []
    for one in rollouts.partitions:
        owed = f", {one.owed:,} of them owed"
        if one.HasField("rollout"):
            rows.append(_row(one, one.rollout, "marked", owed))
        rows += [_row(one, retired, "removed", "") for retired in one.retired]
        if not (one.HasField("rollout") or one.retired):
            rows.append((one.partition, "none", "", "", "", "", ""))
    columns = ["partition", "bundle", "state", "users looked at", "changed", "users/s", "since"]
    print_table(f"Rollouts at {address}", columns, rows)


def _row(
    partition: rollout_pb2.PartitionRollouts, walk: rollout_pb2.BundleWalk, what: str, more: str
) -> Sequence[object]:
    return (
        partition.partition,
        walk.bundle_version,
        walk.state,
        f"{walk.walked:,} of {partition.users:,}",
        f"{walk.changed:,} {what}{more}",
        f"{walk.users_per_s:g}",
        f"{age_text(walk.started_at_ms)} ago",
    )
