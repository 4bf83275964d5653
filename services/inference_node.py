"""The inference node: serves recommendations until it is told to stop."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass

from services.clients import RoutedStateClient, StateClient
from services.grpc_server import GrpcServer
from services.http_server import HttpServer

STATE_READINESS = "gemstream.v1.RecommenderService/state"
"""Name of the health check that says whether the state of every user can be read."""
_LOOK_EVERY_S = 1.0


@dataclass(frozen=True)
class InferenceNode:
    """The parts, put together by services/wiring.py."""

    server: GrpcServer
    users: StateClient | RoutedStateClient
    endpoints: HttpServer
    background: Sequence[Callable[[], Coroutine[None, None, None]]]
    """What runs as long as the node serves; each goes on until it is cancelled, and takes the node with it if it fails."""

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then let calls finish. Raises CannotListen."""
        async with self.users:
            with self.endpoints:
                await self.server.set_part_serving(STATE_READINESS, serving=False)
                await self.server.start()
                tasks = [
                    asyncio.create_task(start())
                    for start in (self._report_state_readiness, *self.background)
                ]
                stopped = asyncio.create_task(stop.wait())
                await self.server.set_serving(True)
                await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
                await self.server.stop()
                failed = [task for task in tasks if task.done()]
                for task in (*tasks, stopped):
                    task.cancel()
                await asyncio.gather(*tasks, stopped, return_exceptions=True)
                for task in failed:
                    task.result()

    async def _report_state_readiness(self) -> None:
        """Health checks of STATE_READINESS hear whether states can be read; without, answers are popular items."""
        while True:
            ready = await self.users.is_ready()
            await self.server.set_part_serving(STATE_READINESS, serving=ready)
            await asyncio.sleep(_LOOK_EVERY_S)
