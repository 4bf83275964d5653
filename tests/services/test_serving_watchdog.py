"""An inference node whose network or event loop is stuck says so, and that it is fine again."""

import asyncio
import contextlib
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc.aio
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.batcher import Batcher, BatchingConfig, Ticket
from services.clients import StateClient
from services.grpc_server import GrpcServer
from services.inference_node import InferenceNode
from services.metrics.exposition import Metrics
from services.serving_watchdog import ServingWatchdog
from services.watch_endpoints import watch_endpoints
from tests.end_to_end.processes import free_address

RECOMMENDER = "gemstream.v1.RecommenderService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
STALL_AFTER_S = 0.3
WITHIN_S = 10.0


class Site:
    """A node with a network that can be held."""

    def __init__(self) -> None:
        self.listen, self.watched = free_address(), free_address()
        self.let_go = threading.Event()
        self.batcher: Batcher[int, int] = Batcher(
            self._work, ThreadPoolExecutor(1), BatchingConfig()
        )
        self.watchdog = ServingWatchdog(lambda: self.batcher.batch_s, STALL_AFTER_S)

    def _work(
        self, batch: Sequence[Ticket[int, int]], check: Callable[[], None]
    ) -> list[int | Exception]:
        self.let_go.wait(WITHIN_S)
        return [ticket.job for ticket in batch]

    async def run(self, stop: asyncio.Event) -> None:
        server = GrpcServer(self.listen, [RECOMMENDER])
        endpoints = watch_endpoints(
            self.watched, "metrics_listen", Metrics(), self.watchdog.verdict, lambda: server.serving
        )
        await InferenceNode(
            server,
            StateClient(free_address(), 0.5),
            endpoints,
            [self.watchdog.run, self.batcher.run],
            verdict=self.watchdog.verdict,
        ).run(stop)

    def healthz(self) -> tuple[int, str]:
        """Code and line; 0 where nobody answers."""
        try:
            with urllib.request.urlopen(f"http://{self.watched}/healthz", timeout=5) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    async def until_ready_is(self, wanted: int) -> None:
        async with grpc.aio.insecure_channel(self.listen) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest(service=RECOMMENDER)
            async with asyncio.timeout(WITHIN_S):
                while (await stub.Check(request, wait_for_ready=True)).status != wanted:
                    await asyncio.sleep(0.02)  # between two looks


@pytest_asyncio.fixture
async def site() -> AsyncIterator[Site]:
    site, stop = Site(), asyncio.Event()
    running = asyncio.create_task(site.run(stop))
    await site.until_ready_is(SERVING)
    yield site
    site.let_go.set()
    stop.set()
    await asyncio.wait_for(running, 20)


async def test_a_stuck_network_is_dead_and_not_ready_until_it_goes_on(site: Site) -> None:
    assert await asyncio.to_thread(site.healthz) == (200, "alive\n")
    waiting = asyncio.create_task(site.batcher.submit(7))
    await site.until_ready_is(NOT_SERVING)
    code, line = await asyncio.to_thread(site.healthz)
    assert (code, "the network has been at one batch for" in line) == (503, True)
    site.let_go.set()
    assert await waiting == 7
    await site.until_ready_is(SERVING)
    assert await asyncio.to_thread(site.healthz) == (200, "alive\n")


async def test_an_event_loop_that_stands_still_is_dead(site: Site) -> None:
    told: list[str] = []

    def look() -> None:
        while (answer := site.healthz())[0] != 503:
            pass
        told.append(answer[1])

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(WITHIN_S)  # on the loop, which does not turn meanwhile
    assert "the event loop has not turned for" in told[0]
    with contextlib.suppress(TimeoutError):
        await site.until_ready_is(SERVING)
    assert (await asyncio.to_thread(site.healthz))[0] == 200


async def test_a_busy_network_is_alive_while_batches_end() -> None:
    now_s, batch_s = 100.0, 0.0
    watchdog = ServingWatchdog(lambda: batch_s, 60.0, lambda: now_s)
    assert watchdog.verdict().alive
    running = asyncio.create_task(watchdog.run())
    await asyncio.sleep(0)
    now_s, batch_s = 150.0, 59.0
    assert watchdog.verdict().alive
    batch_s = 61.0
    assert not watchdog.verdict().alive
    batch_s, now_s = 0.0, 162.0
    assert watchdog.verdict().reason == "stalled: the event loop has not turned for 62 s"
    running.cancel()
