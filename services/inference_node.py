"""The inference node: serves recommendations until it is told to stop."""

import asyncio
from dataclasses import dataclass

from services.clients import StateClient
from services.grpc_server import GrpcServer
from services.http_server import HttpServer


@dataclass(frozen=True)
class InferenceNode:
    """The parts, put together by services/wiring.py."""

    server: GrpcServer
    users: StateClient
    endpoints: HttpServer

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then let calls finish. Raises CannotListen."""
        async with self.users:
            with self.endpoints:
                await self.server.start()
                await self.server.set_serving(True)
                await stop.wait()
                await self.server.stop()
