"""The state node: owns partitions, folds their events, serves the states and hands out compression jobs."""

import asyncio
import gc
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass

from services.backfill_taker import BackfillTaker
from services.checkpointer import Checkpointer
from services.grpc_server import GrpcServer
from services.http_server import HttpServer
from services.rollout import Rollouts
from services.stopping import unless_stopped
from state.errors import StoreClosed
from state.partition_stores import PartitionStores
from stream.compression_jobs import JobDispatcher
from stream.consumer import InteractionConsumer
from stream.ingest import Ingest
from stream.ownership import OwnershipAnnouncer
from stream.producer import Producer
from stream.watchdog import Watchdog

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.1


def relax_collector() -> None:
    """Let Python look for cycles less often: every poll makes some 20,000 records that have none and die together.

    With the default thresholds a quarter of a busy node's time went into looking.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


class Eraser:
    """Lets what users deleted leave the disk, in the background."""

    def __init__(self, stores: PartitionStores, interval_s: float) -> None:
        """`interval_s`: how long a round waits for the next."""
        self._stores = stores
        self._interval_s = interval_s

    async def run(self) -> None:
        """Erase until cancelled. Raises StoreError."""
        while True:
            for partition in self._stores.partitions():
                erased = await asyncio.to_thread(self._erase, partition)
                if erased:
                    log.info("what %d users deleted is gone from the disk, too", erased)
            await asyncio.sleep(self._interval_s)

    def _erase(self, partition: int) -> int:
        try:
            return self._stores.get(partition).erase_deleted()
        except StoreClosed:
            return 0  # given away meanwhile: the mark is in the store


@dataclass(frozen=True)
class StateNode:
    """The parts, put together by services/wiring.py."""

    server: GrpcServer
    producer: Producer
    consumer: InteractionConsumer
    ingest: Ingest
    dispatcher: JobDispatcher
    announcer: OwnershipAnnouncer
    eraser: Eraser
    rollouts: Rollouts
    stores: PartitionStores
    watchdog: Watchdog
    endpoints: HttpServer
    checkpoints: Checkpointer | None = None
    """None where no checkpoints are kept."""
    backfills: BackfillTaker | None = None
    """None where there are none."""

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set or a part fails; then stop in order.

        The poll in hand is applied and committed, calls finish, the group is left, the store is closed. Raises what
        failed: StreamError, StateError, CannotListen; Stopped when `stop` came before the node was up.
        """
        relax_collector()
        async with AsyncExitStack() as stack:
            stack.enter_context(self.endpoints)
            stack.callback(self.stores.close_all)
            await stack.enter_async_context(self.producer)
            stack.push_async_callback(self.consumer.stop)
            if self.checkpoints is not None:
                stack.callback(self.checkpoints.stop)
            await self.server.start()
            stack.push_async_callback(self.server.stop)
            await unless_stopped(self.consumer.start(), stop)
            await self._work_until(stop)

    async def _report_readiness(self) -> None:
        """Health checks hear SERVING once every partition that came with an assignment has caught up."""
        while True:
            await self.server.set_serving(self.consumer.phases.all_ready())
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _work_until(self, stop: asyncio.Event) -> None:
        ingest = asyncio.create_task(self.ingest.run())
        others = [
            asyncio.create_task(self.dispatcher.run(self.consumer.served)),
            asyncio.create_task(self.announcer.run(self.consumer.served)),
            asyncio.create_task(self.eraser.run()),
            asyncio.create_task(self.rollouts.run()),
            asyncio.create_task(self._report_readiness()),
            asyncio.create_task(self.watchdog.run()),
            *([asyncio.create_task(self.checkpoints.run())] if self.checkpoints else []),
            *([asyncio.create_task(self.backfills.run())] if self.backfills else []),
            asyncio.create_task(stop.wait()),
        ]
        await asyncio.wait([ingest, *others], return_when=asyncio.FIRST_COMPLETED)
        self.ingest.stop()
        for task in others:
            task.cancel()
        await asyncio.gather(ingest, *others, return_exceptions=True)
        for task in (ingest, *others):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
