"""Readiness of an inference node, in gRPC's health: of inference, and of the states behind it."""

import asyncio

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.clients import RoutedStateClient, StateClient
from services.grpc_server import GrpcServer
from services.http_server import HttpServer
from services.inference_node import STATE_READINESS, InferenceNode
from tests.end_to_end.processes import free_address
from tests.services.nodes import NUM_PARTITIONS, FakeOwner

RECOMMENDER = "gemstream.v1.RecommenderService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_inference_is_ready_without_states_and_states_are_said_apart() -> None:
    state, listen, stop = free_address(), free_address(), asyncio.Event()
    node = InferenceNode(
        GrpcServer(listen, [RECOMMENDER]),
        StateClient(state, 0.5),
        HttpServer("", "inference_node.metrics_listen", {}),
        [],
    )
    running = asyncio.create_task(node.run(stop))
    async with grpc.aio.insecure_channel(listen) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        async def status(name: str) -> int:
            request = health_pb2.HealthCheckRequest(service=name)
            return int((await stub.Check(request, wait_for_ready=True)).status)

        async def until(name: str, wanted: int) -> None:
            async with asyncio.timeout(10):
                while await status(name) != wanted:
                    await asyncio.sleep(0.05)

        await until(RECOMMENDER, SERVING)
        assert await status("") == SERVING
        assert await status(STATE_READINESS) == NOT_SERVING
        owner = GrpcServer(state, ["gemstream.v1.StateService"])
        await owner.start()
        await owner.set_serving(True)
        await until(STATE_READINESS, SERVING)
        await owner.set_serving(False)
        await until(STATE_READINESS, NOT_SERVING)
        assert await status(RECOMMENDER) == SERVING
        await owner.stop()
    stop.set()
    await asyncio.wait_for(running, 20)


async def test_states_are_ready_where_every_owner_is() -> None:
    owner, elsewhere = FakeOwner(), dict[int, str | None]()

    async def find_owner(partition: int, timeout_s: float) -> str | None:
        return elsewhere.get(partition)

    async with owner.serving() as address:
        async with StateClient(address, 1.0) as one, StateClient("127.0.0.1:1", 0.3) as nobody:
            assert await one.is_ready()
            assert not await nobody.is_ready()
        async with RoutedStateClient(find_owner, NUM_PARTITIONS, 1.0) as users:
            elsewhere.update(dict.fromkeys(range(NUM_PARTITIONS - 1), address))
            assert not await users.is_ready()
            elsewhere[NUM_PARTITIONS - 1] = address
            assert await users.is_ready()
            elsewhere[0] = "127.0.0.1:1"
            assert not await users.is_ready()
