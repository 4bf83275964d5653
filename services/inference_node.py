"""The inference node: serves recommendations until it is told to stop."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Protocol

from services.clients import RoutedStateClient, StateClient
from services.grpc_server import GrpcServer
from services.http_server import HttpServer
from services.stopping import unless_stopped


class Catalogue(Protocol):
    """What keeps the catalogue as its topic says; services.catalogue_follower.CatalogueFollower is one."""

    async def run(self) -> None:
        """Until cancelled. Raises TopicMismatch."""
        ...

    async def wait_until_caught_up(self) -> None:
        """Return when it serves what it would have served had the node never stopped."""
        ...


@dataclass(frozen=True)
class InferenceNode:
    """The parts, put together by services/wiring.py."""

    server: GrpcServer
    users: StateClient | RoutedStateClient
    endpoints: HttpServer
    follow_owners: Callable[[], Coroutine[None, None, None]] | None
    """Keeps `users` informed who serves whom; None where one address is given."""
    catalogue: Catalogue | None = None
    """None where there is no Kafka."""

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then let calls finish. Raises CannotListen, TopicMismatch."""
        async with self.users:
            with self.endpoints:
                await self.server.start()
                following = [asyncio.create_task(follow()) for follow in self._follows()]
                serving = asyncio.create_task(self._serve(stop))
                try:
                    await asyncio.wait([serving, *following], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    await self.server.stop()
                    for task in (serving, *following):
                        task.cancel()
                    ends = await asyncio.gather(serving, *following, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    def _follows(self) -> Iterator[Callable[[], Coroutine[None, None, None]]]:
        if self.follow_owners is not None:
            yield self.follow_owners
        if self.catalogue is not None:
            yield self.catalogue.run

    async def _serve(self, stop: asyncio.Event) -> None:
        """Ready once the catalogue is what it was when the node went down."""
        if self.catalogue is not None:
            await unless_stopped(self.catalogue.wait_until_caught_up(), stop)
        await self.server.set_serving(True)
        await stop.wait()
