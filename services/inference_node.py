"""The inference node: serves recommendations until it is told to stop."""

import asyncio
from collections.abc import Callable, Coroutine
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
    follow_owners: Callable[[], Coroutine[None, None, None]] | None
    """Keeps `users` informed who serves whom; None where one address is given."""

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then let calls finish. Raises CannotListen."""
        async with self.users:
            with self.endpoints:
                await self.server.set_part_serving(STATE_READINESS, serving=False)
                await self.server.start()
                await self.server.set_serving(True)
                background = [asyncio.create_task(self._report_state_readiness())]
                if self.follow_owners is not None:
                    background.append(asyncio.create_task(self.follow_owners()))
                await stop.wait()
                await self.server.stop()
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)

    async def _report_state_readiness(self) -> None:
        """Health checks of STATE_READINESS hear whether states can be read; without, answers are popular items."""
        while True:
            ready = await self.users.is_ready()
            await self.server.set_part_serving(STATE_READINESS, serving=ready)
            await asyncio.sleep(_LOOK_EVERY_S)
