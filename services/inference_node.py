"""The inference node: serves recommendations until it is told to stop."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from services.clients import RoutedStateClient, StateClient
from services.grpc_server import GrpcServer
from services.http_server import HttpServer


@dataclass(frozen=True)
class InferenceNode:
    """The parts, put together by services/wiring.py."""

    server: GrpcServer
    users: StateClient | RoutedStateClient
    endpoints: HttpServer
    follow_owners: Callable[[], Coroutine[None, None, None]] | None
    """Keeps `users` informed who serves whom; None where one address is given."""
    follow_trending: Callable[[], Coroutine[None, None, None]] | None
    """Hears what trends; None without Kafka."""

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then let calls finish. Raises CannotListen."""
        async with self.users:
            with self.endpoints:
                await self.server.start()
                await self.server.set_serving(True)
                following = [
                    asyncio.create_task(follow())
                    for follow in (self.follow_owners, self.follow_trending)
                    if follow is not None
                ]
                await stop.wait()
                await self.server.stop()
                for task in following:
                    task.cancel()
                await asyncio.gather(*following, return_exceptions=True)
