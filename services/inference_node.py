"""The inference node: serves recommendations until it is told to stop."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass

from services.clients import RoutedStateClient, StateClient
from services.errors import ServiceError
from services.grpc_server import GrpcServer
from services.http_server import HttpServer
from services.stopping import unless_stopped
from services.watch_endpoints import always_alive
from stream.watchdog import Verdict

STATE_READINESS = "gemstream.v1.RecommenderService/state"
"""Name of the health check that says whether the state of every user can be read."""
_LOOK_EVERY_S = 1.0

Task = Callable[[], Coroutine[None, None, None]]


@dataclass(frozen=True)
class InferenceNode:
    """The parts, put together by services/wiring.py."""

    server: GrpcServer
    users: StateClient | RoutedStateClient
    endpoints: HttpServer
    background: Sequence[Task]
    """What runs as long as the node does; each goes on until it is cancelled, and takes the node with it if it fails."""
    until_ready: Sequence[Task] = ()
    """What has to be over before the node says that it serves."""
    verdict: Callable[[], Verdict] = always_alive
    """A node that is not alive does not say that it serves."""

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then let calls finish. Raises CannotListen, TopicMismatch."""
        async with self.users:
            with self.endpoints:
                await self.server.set_part_serving(STATE_READINESS, serving=False)
                await self.server.start()
                tasks = [
                    asyncio.create_task(start())
                    for start in (self._report_state_readiness, *self.background)
                ]
                serving = asyncio.create_task(self._serve(stop))
                try:
                    await asyncio.wait([serving, *tasks], return_when=asyncio.FIRST_COMPLETED)
                    _check_running(tasks)
                finally:
                    serving.cancel()  # or it would say that the node serves again
                    await self.server.stop()
                    for task in (serving, *tasks):
                        task.cancel()
                    ends = await asyncio.gather(serving, *tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _serve(self, stop: asyncio.Event) -> None:
        for wait in self.until_ready:
            await unless_stopped(wait(), stop)
        while not stop.is_set():
            alive = self.verdict().alive
            if alive != self.server.serving:
                await self.server.set_serving(alive)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await stop.wait()

    async def _report_state_readiness(self) -> None:
        """Health checks of STATE_READINESS hear whether states can be read; without, answers are popular items."""
        while True:
            ready = await self.users.is_ready()
            await self.server.set_part_serving(STATE_READINESS, serving=ready)
            await asyncio.sleep(_LOOK_EVERY_S)


def _check_running(tasks: Sequence["asyncio.Task[None]"]) -> None:
    """A task that ended as if somebody had asked it to would take the node with it without a word."""
    for task in tasks:
        if task.cancelled():
            raise ServiceError(f"{task.get_coro()} of this node was cancelled by something in it")
