"""`gemstream produce`: events from a file into Kafka."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from services.cli.options import BootstrapOption, ConfigOption
from services.cli.output import JsonOption, people, print_json, print_text
from services.local_broker import find_bootstrap
from services.settings import load_settings

_BROKER_DEADLINE_S = 5.0
"""A person waits; a role would be more patient."""


def produce(
    events: Annotated[
        Path,
        typer.Argument(
            help="A .parquet or .csv file with user_id, item_id, event_time_ms and, if known, event_id, author_id, "
            "tag, play_time_ms, duration_ms, kinds (such as 'view|like')."
        ),
    ],
    config: ConfigOption = None,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a file of events to Kafka, in event-time order, keyed by user."""
    from services.event_producer import produce_events
    from state.event_log import read_event_log
    from stream.producer import Producer
    from stream.topics import ensure_topics

    settings = load_settings(config, {"bootstrap": bootstrap})
    address = find_bootstrap(settings)
    log = read_event_log(events)

    async def run() -> None:
        await ensure_topics(address, settings.topics, deadline_s=_BROKER_DEADLINE_S)
        with _progress() as progress:
            task = progress.add_task("producing", total=len(log.rows))
            async with Producer(address) as producer:
                await produce_events(
                    log, producer, settings.topics, lambda count: progress.advance(task, count)
                )

    asyncio.run(run())
    if as_json:
        print_json({"produced": len(log.rows), "users": len(log.user_ids), "bootstrap": address})
    else:
        print_text(f"{len(log.rows)} events of {len(log.user_ids)} users are in Kafka at {address}")


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=people,
    )
