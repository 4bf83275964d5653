"""gRPC clients of the state node, and of everything the command line asks."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos import admin_pb2, admin_pb2_grpc, recommender_pb2, recommender_pb2_grpc, state_pb2
from protos.state_pb2_grpc import StateServiceStub
from services.channels import Target, open_channel
from services.circuit_breaker import CircuitBreaker
from services.credentials import ClientCredentials
from services.errors import NotFound, Unreachable
from services.renewed_channel import RenewedChannel
from services.state_messages import (
    known_seen_to_wire,
    known_to_wire,
    rolled_from_wire,
    seen_from_wire,
    summary_to_wire,
    user_from_wire,
)
from services.status_codes import from_rpc_error
from services.tracing import outgoing_trace
from state.seen_items import KnownSeen, SeenItems
from state.summary import Summary
from state.user_delta import Known, UserDelta, decode_delta
from state.user_state import Rolled, UserState
from stream.topics import partition_of

_PLAIN = ClientCredentials()
_STATE_SERVICE = "gemstream.v1.StateService"
_Metadata = tuple[tuple[str, str], ...]


class _Stubs:
    """Of a state node."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.state = StateServiceStub(channel)
        self.health = health_pb2_grpc.HealthStub(channel)


class StateClient(AbstractAsyncContextManager["StateClient"]):
    """Reads users and exchanges summaries with one state node. Use as an async context manager."""

    def __init__(
        self, address: str, timeout_s: float, credentials: ClientCredentials = _PLAIN
    ) -> None:
        """Nothing is connected before the first call."""
        self._address = address
        self._timeout_s = timeout_s
        self._reads = CircuitBreaker(address)
        self._channel = RenewedChannel(Target(address, credentials), _Stubs, timeout_s)

    async def __aexit__(self, *error: object) -> None:
        """Close the channel."""
        await self._channel.close()

    async def read_user(self, user_id: str, bundle_version: str) -> UserState | None:
        """The user's state; None when there is none. Raises Unreachable."""
        request = state_pb2.GetUserStateRequest(user_id=user_id, bundle_version=bundle_version)
        reply = await self._find("GetUserState", request)
        return None if reply is None else user_from_wire(reply).decode(user_id)

    async def read_delta(
        self,
        user_id: str,
        bundle_version: str,
        known: Known | None,
        timeout_s: float | None = None,
    ) -> UserDelta | None:
        """The user's state without what is known of it; None when there is none. Raises Unreachable, StateError.

        `timeout_s` where the caller has less time than this client takes.
        """
        request = state_pb2.GetUserStateRequest(user_id=user_id, bundle_version=bundle_version)
        if known is not None:
            request.known.CopyFrom(known_to_wire(known))
        reply = await self._find("GetUserState", request, timeout_s)
        return None if reply is None else decode_delta(user_id, user_from_wire(reply))

    async def read_seen(
        self, user_id: str, known: KnownSeen | None = None, timeout_s: float | None = None
    ) -> SeenItems | None:
        """Items of the lifecycle segment, from where `known` ends; None when there is no such user. Raises Unreachable."""
        request = state_pb2.GetSeenItemsRequest(user_id=user_id)
        if known is not None:
            request.known.CopyFrom(known_seen_to_wire(known))
        reply = await self._find("GetSeenItems", request, timeout_s)
        return None if reply is None else seen_from_wire(reply)

    async def _find(self, method: str, request: Any, timeout_s: float | None = None) -> Any:
        """The reply; None for NOT_FOUND. Raises Unreachable at once where the node has just said nothing in time."""
        timeout_s = _shorter(self._timeout_s, timeout_s)
        with self._reads.call():
            try:
                return await self._ask(method, request, timeout_s, outgoing_trace())
            except NotFound:
                return None

    async def _ask(
        self, method: str, request: Any, timeout_s: float, metadata: _Metadata = ()
    ) -> Any:
        """The reply. Raises what its status means."""
        call = getattr(self._channel.stubs().state, method)
        try:
            return await call(request, timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self._address) from error

    async def is_ready(self) -> bool:
        """Whether the node answers and has caught up."""
        request = health_pb2.HealthCheckRequest(service=_STATE_SERVICE)
        try:
            reply = await self._channel.stubs().health.Check(request, timeout=self._timeout_s)
        except grpc.RpcError:
            return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    async def read_rolled(self, user_id: str, bundle_version: str, max_chunks: int) -> Rolled:
        """What the boundary left behind. Raises NotFound, Unreachable."""
        request = state_pb2.GetRolledRequest(
            user_id=user_id, bundle_version=bundle_version, max_chunks=max_chunks
        )
        return rolled_from_wire(await self._ask("GetRolled", request, self._timeout_s))

    async def put_summary(
        self, user_id: str, summary: Summary, base_boundary: int, epoch: int
    ) -> tuple[bool, bool]:
        """Hand a summary back; returns (stored, complete). Raises NotFound, Unreachable."""
        request = state_pb2.PutSummaryRequest(
            user_id=user_id,
            summary=summary_to_wire(summary, with_accumulators=True),
            base_boundary=base_boundary,
            epoch=epoch,
        )
        reply = await self._ask("PutSummary", request, self._timeout_s)
        return reply.stored, reply.complete

    async def report_failure(self, user_id: str, bundle_version: str, reason: str) -> None:
        """Tell the owner that a user cannot be compressed. Raises Unreachable."""
        request = state_pb2.ReportFailureRequest(
            user_id=user_id, bundle_version=bundle_version, reason=reason
        )
        await self._ask("ReportFailure", request, self._timeout_s)


class StateClients:
    """One client per state node, kept: channels are costly to make."""

    def __init__(self, timeout_s: float, credentials: ClientCredentials = _PLAIN) -> None:
        """None yet."""
        self._timeout_s = timeout_s
        self._credentials = credentials
        self._clients: dict[str, StateClient] = {}
        self._stack = AsyncExitStack()

    def at(self, address: str) -> StateClient:
        """The client of the node at an address."""
        if address not in self._clients:
            client = StateClient(address, self._timeout_s, self._credentials)
            self._stack.push_async_exit(client)
            self._clients[address] = client
        return self._clients[address]

    async def close(self) -> None:
        """Close all channels."""
        await self._stack.aclose()


class RoutedStateClient(AbstractAsyncContextManager["RoutedStateClient"]):
    """Reads every user from the node that announced to serve its partition. Use as an async context manager."""

    def __init__(
        self,
        find_owner: Callable[[int, float], Awaitable[str | None]],
        num_partitions: int,
        timeout_s: float,
        credentials: ClientCredentials = _PLAIN,
    ) -> None:
        """`find_owner` tells where a partition is served; None when that is not known within some seconds."""
        self._find_owner = find_owner
        self._num_partitions = num_partitions
        self._timeout_s = timeout_s
        self._clients = StateClients(timeout_s, credentials)

    async def __aexit__(self, *error: object) -> None:
        """Close the channels."""
        await self._clients.close()

    async def read_user(self, user_id: str, bundle_version: str) -> UserState | None:
        """As StateClient.read_user."""
        return await (await self._owner(user_id)).read_user(user_id, bundle_version)

    async def read_delta(
        self,
        user_id: str,
        bundle_version: str,
        known: Known | None,
        timeout_s: float | None = None,
    ) -> UserDelta | None:
        """As StateClient.read_delta."""
        until_s = time.monotonic() + _shorter(self._timeout_s, timeout_s)
        owner = await self._owner(user_id, timeout_s)
        return await owner.read_delta(user_id, bundle_version, known, until_s - time.monotonic())

    async def read_seen(
        self, user_id: str, known: KnownSeen | None = None, timeout_s: float | None = None
    ) -> SeenItems | None:
        """As StateClient.read_seen."""
        until_s = time.monotonic() + _shorter(self._timeout_s, timeout_s)
        owner = await self._owner(user_id, timeout_s)
        return await owner.read_seen(user_id, known, until_s - time.monotonic())

    async def is_ready(self) -> bool:
        """Whether every partition is served by a node that answers and has caught up."""
        partitions = range(self._num_partitions)
        owners = await asyncio.gather(*(self._find_owner(each, 0.0) for each in partitions))
        addresses = {owner for owner in owners if owner is not None}
        if None in owners:
            return False
        return all(await asyncio.gather(*(self._clients.at(each).is_ready() for each in addresses)))

    async def _owner(self, user_id: str, timeout_s: float | None = None) -> StateClient:
        partition = partition_of(user_id, self._num_partitions)
        address = await self._find_owner(partition, _shorter(self._timeout_s, timeout_s))
        if address is None:
            raise Unreachable(f"no state node has announced to serve partition {partition}")
        return self._clients.at(address)


def recommend(
    target: Target, request: recommender_pb2.RecommendRequest, timeout_s: float
) -> recommender_pb2.RecommendResponse:
    """One blocking Recommend call. Raises Unreachable, InvalidRequest."""
    with open_channel(target) as channel:
        stub = recommender_pb2_grpc.RecommenderServiceStub(channel)
        reply: recommender_pb2.RecommendResponse = _call(stub.Recommend, request, target, timeout_s)
        return reply


def recommend_batch(
    target: Target, request: recommender_pb2.RecommendBatchRequest, timeout_s: float
) -> recommender_pb2.RecommendBatchResponse:
    """One blocking RecommendBatch call. Raises Unreachable, InvalidRequest."""
    with open_channel(target) as channel:
        stub = recommender_pb2_grpc.RecommenderServiceStub(channel)
        reply: recommender_pb2.RecommendBatchResponse = _call(
            stub.RecommendBatch, request, target, timeout_s
        )
        return reply


def describe_user(
    target: Target, user_id: str, newest: int, timeout_s: float
) -> admin_pb2.UserDescription:
    """One blocking DescribeUser call. Raises NotFound, Unreachable, InvalidRequest."""
    with open_channel(target) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        request = admin_pb2.DescribeUserRequest(user_id=user_id, newest=newest)
        reply: admin_pb2.UserDescription = _call(stub.DescribeUser, request, target, timeout_s)
        return reply


def delete_user(target: Target, user_id: str, timeout_s: float) -> None:
    """One blocking DeleteUser call: the deletion is in the log. Raises Unreachable, InvalidRequest."""
    with open_channel(target) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        request = admin_pb2.DeleteUserRequest(user_id=user_id)
        _call(stub.DeleteUser, request, target, timeout_s)


def delete_interactions(target: Target, user_id: str, item_id: int, timeout_s: float) -> bool:
    """One blocking DeleteInteractions call; returns whether the request, which is in the log now, is applied, too.

    Raises Unreachable, InvalidRequest.
    """
    with open_channel(target) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        request = admin_pb2.DeleteInteractionsRequest(
            user_id=user_id, item_id=item_id, wait_ms=int(timeout_s * 900)
        )
        reply: admin_pb2.DeleteInteractionsResponse = _call(
            stub.DeleteInteractions, request, target, timeout_s
        )
        return reply.applied


def describe_store(target: Target, timeout_s: float) -> admin_pb2.StoreDescription:
    """One blocking DescribeStore call. Raises Unreachable."""
    with open_channel(target) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        request = admin_pb2.DescribeStoreRequest()
        reply: admin_pb2.StoreDescription = _call(stub.DescribeStore, request, target, timeout_s)
        return reply


def take_checkpoints(
    target: Target, partition: int | None, timeout_s: float, *, prune: bool, full: bool
) -> admin_pb2.TakeCheckpointsResponse:
    """One blocking TakeCheckpoints call. Raises NotFound, Unreachable, InvalidRequest."""
    with open_channel(target) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        request = admin_pb2.TakeCheckpointsRequest(partition=partition, prune=prune, full=full)
        reply: admin_pb2.TakeCheckpointsResponse = _call(
            stub.TakeCheckpoints, request, target, timeout_s
        )
        return reply


def _call(method: Any, request: Any, target: Target, timeout_s: float) -> Any:
    try:
        return method(request, timeout=timeout_s, metadata=target.credentials.metadata)
    except grpc.RpcError as error:
        raise from_rpc_error(error, target.address) from error


def _shorter(timeout_s: float, asked_s: float | None) -> float:
    """Of a client's time and its caller's, where that has any."""
    return timeout_s if asked_s is None else min(timeout_s, asked_s)
