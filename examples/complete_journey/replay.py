"""An event log through Kafka into the states, with bars that show how far each part is."""

import asyncio
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from examples.complete_journey.roles import Deployment
from services import clients
from services.channels import Target
from services.event_producer import produce_events
from services.settings import load_settings
from state.event_log import EventLog
from stream.producer import Producer
from stream.topics import ensure_topics

LOOK_EVERY_S = 0.3
TIMEOUT_S = 30.0


def replay(where: Deployment, log: EventLog, console: Console) -> None:
    """Produce `log`; return when every event is in the state and no summary is owed."""
    total = len(log.rows)
    columns = (
        TextColumn("{task.description:>20}"),
        BarColumn(),
        TextColumn("{task.completed:>11,.0f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        produced = progress.add_task("in Kafka", total=total)
        applied = progress.add_task("in the states", total=total)
        owed = progress.add_task("summaries owed", total=None)

        def show(num_applied: int, num_owed: int) -> None:
            progress.update(applied, completed=num_applied)
            progress.update(owed, completed=num_owed, total=0 if num_applied == total else None)

        asyncio.run(_replay(where, log, lambda count: progress.advance(produced, count), show))


async def _replay(
    where: Deployment,
    log: EventLog,
    on_delivered: Callable[[int], None],
    show: Callable[[int, int], None],
) -> None:
    topics = load_settings(where.config, {}).topics
    await ensure_topics(where.bootstrap, topics)
    already, _ = await _look(where)
    async with Producer(where.bootstrap) as producer:
        producing = asyncio.create_task(produce_events(log, producer, topics, on_delivered))
        num_applied, num_owed = 0, 0
        while num_applied < len(log.rows) or num_owed:
            await asyncio.sleep(LOOK_EVERY_S)
            position, num_owed = await _look(where)
            num_applied = position - already
            show(num_applied, num_owed)
            if producing.done():
                producing.result()
        await producing


async def _look(where: Deployment) -> tuple[int, int]:
    """Events applied in all partitions, and users owed a summary."""
    store = await asyncio.to_thread(clients.describe_store, Target(where.state), TIMEOUT_S)
    return sum(partition.next_offset for partition in store.partitions), store.dirty_users
