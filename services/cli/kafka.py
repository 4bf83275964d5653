"""`gemstream kafka`: a local Apache Kafka that stays, for people who have none."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import platformdirs
import typer

from services.cli.output import CommandError, JsonOption, people, print_json, print_table
from services.detached_kafka import running_kafka, start_detached
from services.kafka_jars import version
from services.local_kafka import KafkaProcess
from stream.errors import StreamError
from stream.topics import describe_cluster

app = typer.Typer(help="A local Apache Kafka, without Docker.", no_args_is_help=True)

PortOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=65535,
        help="Port on 127.0.0.1. Default: the last one, else 9092, else any that is free.",
    ),
]
DataDirOption = Annotated[
    Path | None, typer.Option(help="Where its data is kept; a directory of yours by default.")
]


@app.command()
def start(
    port: PortOption = None, data_dir: DataDirOption = None, as_json: JsonOption = False
) -> None:
    """Start a broker that stays when this command is done."""
    if running_kafka() is None:
        people.print("Starting Kafka (the first time fetches 43 MB of jars) ...")
    directory = data_dir or platformdirs.user_data_path("gemstream") / "kafka"
    kafka, is_new = start_detached(directory, port=port)
    if not is_new:
        _check_same(kafka, port, data_dir)
        people.print(f"Kafka is running already at {kafka.bootstrap}")
    _show(kafka, as_json=as_json)


def _check_same(kafka: KafkaProcess, port: int | None, data_dir: Path | None) -> None:
    """Who asks for one place must not be given another. Raises CommandError."""
    other_port = port is not None and not kafka.bootstrap.endswith(f":{port}")
    other_place = data_dir is not None and data_dir.resolve() != kafka.data_dir.resolve()
    if other_port or other_place:
        raise CommandError(
            f"Kafka is running already at {kafka.bootstrap}, with its data in {kafka.data_dir}; a user has one broker: "
            "stop it with `gemstream kafka stop`, or leave out --port and --data-dir to use it"
        )


@app.command()
def stop() -> None:
    """Stop the broker and wait until it is gone; its data stays."""
    kafka = running_kafka()
    if kafka is None:
        people.print("Kafka is not running")
        return
    kafka.stop()
    people.print(f"Kafka at {kafka.bootstrap} has stopped; its data stays in {kafka.data_dir}")


@app.command()
def status(as_json: JsonOption = False) -> None:
    """Show the broker's address, process, data directory and topics."""
    kafka = running_kafka()
    if kafka is None:
        if as_json:
            print_json({"running": False})
            raise typer.Exit(CommandError.NOT_FOUND)
        raise CommandError(
            "Kafka is not running: start it with `gemstream kafka start`", CommandError.NOT_FOUND
        )
    _show(kafka, as_json=as_json)


def _show(kafka: KafkaProcess, *, as_json: bool) -> None:
    about = _about(kafka)
    if as_json:
        print_json(about)
        return
    topics = about.pop("topics")
    print_table("Kafka", ("", ""), tuple(about.items()))
    if topics:
        print_table("Topics", ("name", "partitions"), tuple(topics.items()))


def _about(kafka: KafkaProcess) -> dict[str, Any]:
    try:
        cluster = asyncio.run(describe_cluster(kafka.bootstrap))
    except StreamError as error:
        raise CommandError(
            f"Kafka runs as pid {kafka.process.pid} and does not answer ({error}): try again, or "
            "run `gemstream kafka stop`",
            CommandError.UNREACHABLE,
        ) from error
    return {
        "running": True,
        "bootstrap": kafka.bootstrap,
        "pid": kafka.process.pid,
        "version": version(),
        "data_dir": str(kafka.data_dir),
        "bytes_on_disk": _bytes_on_disk(kafka.data_dir),
        "topics": dict(sorted(cluster.partitions.items())),
    }


def _bytes_on_disk(directory: Path) -> int:
    """What its files occupy: index files are sparse, so their length says nothing."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:  # the broker deletes segments as we look
            continue
    return total
