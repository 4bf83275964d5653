"""The state node: owns partitions, folds their events, serves the states and hands out compression jobs."""

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass

from services.grpc_server import GrpcServer
from services.stopping import unless_stopped
from state.key_value_store import KeyValueStore
from state.user_store import UserStore
from stream.compression_jobs import JobDispatcher
from stream.consumer import InteractionConsumer
from stream.ingest import Ingest
from stream.producer import Producer

log = logging.getLogger(__name__)


class Eraser:
    """Lets deleted users leave the disk, in the background."""

    def __init__(self, store: UserStore, interval_s: float) -> None:
        """`interval_s`: how long a round waits for the next."""
        self._store = store
        self._interval_s = interval_s

    async def run(self) -> None:
        """Erase until cancelled. Raises StoreError."""
        while True:
            erased = await asyncio.to_thread(self._store.erase_deleted)
            if erased:
                log.info("%d deleted users are gone from the disk, too", erased)
            await asyncio.sleep(self._interval_s)


@dataclass(frozen=True)
class StateNode:
    """The parts, put together by services/wiring.py; `store` is open and closed by `run`."""

    server: GrpcServer
    producer: Producer
    consumer: InteractionConsumer
    ingest: Ingest
    dispatcher: JobDispatcher
    eraser: Eraser
    store: KeyValueStore

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set or a part fails; then stop in order.

        The poll in hand is applied and committed, calls finish, the group is left, the store is closed. Raises what
        failed: StreamError, StateError, CannotListen; Stopped when `stop` came before the node was up.
        """
        async with AsyncExitStack() as stack:
            stack.callback(self.store.close)
            await stack.enter_async_context(self.producer)
            stack.push_async_callback(self.consumer.stop)
            await self.server.start()
            stack.push_async_callback(self.server.stop)
            await unless_stopped(self.consumer.start(), stop)
            await self.server.set_serving(True)
            await self._work_until(stop)

    async def _work_until(self, stop: asyncio.Event) -> None:
        ingest = asyncio.create_task(self.ingest.run())
        others = [
            asyncio.create_task(self.dispatcher.run(self.consumer.assigned)),
            asyncio.create_task(self.eraser.run()),
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
