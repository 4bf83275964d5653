"""AdminService over gRPC: what the store holds, for operators."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc.aio

from protos import admin_pb2, admin_pb2_grpc
from services.errors import NotFound, Unreachable
from services.interaction_messages import interaction_to_wire
from services.state_messages import meta_to_wire
from state.inspection import UserInspection, count_dirty, inspect_user, stored_offsets, users_of
from state.interaction import check_user_id
from state.key_value_store import KeyValueStore
from state.segments import HistoryConfig
from stream.errors import StreamError
from stream.topics import partition_of

Context = grpc.aio.ServicerContext[Any, Any]

_MAX_NEWEST = 256


@dataclass(frozen=True)
class NodeView:
    """What the service may see of its node."""

    store: KeyValueStore
    history: HistoryConfig
    num_partitions: int
    assigned: Callable[[], set[int]]
    end_offset: Callable[[int], int | None]
    counters: Mapping[str, int]
    delete_user: Callable[[str], Awaitable[None]]
    """Puts a deletion into the log. Raises StreamError."""


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Answers from the store's keys; nothing is kept between calls."""

    def __init__(self, node: NodeView) -> None:
        """`node` is alive as long as the server is."""
        self._node = node

    async def DescribeUser(
        self, request: admin_pb2.DescribeUserRequest, context: Context
    ) -> admin_pb2.UserDescription:
        """See protos/admin.proto."""
        check_user_id(request.user_id)
        partition = partition_of(request.user_id, self._node.num_partitions)
        user = await asyncio.to_thread(inspect_user, self._node.store, partition, request.user_id)
        if user is None:
            raise NotFound(f"no state for user {request.user_id!r}")
        description = self._describe(user)
        description.user_id, description.partition = request.user_id, partition
        description.owned = partition in self._node.assigned()
        newest = user.tail[::-1][: min(request.newest, _MAX_NEWEST)]
        description.newest.extend(
            interaction_to_wire(row, request.user_id) for row in newest.tolist()
        )
        return description

    async def DescribeStore(
        self, request: admin_pb2.DescribeStoreRequest, context: Context
    ) -> admin_pb2.StoreDescription:
        """See protos/admin.proto."""
        return await asyncio.to_thread(self._describe_store)

    async def DeleteUser(
        self, request: admin_pb2.DeleteUserRequest, context: Context
    ) -> admin_pb2.DeleteUserResponse:
        """See protos/admin.proto."""
        check_user_id(request.user_id)
        try:
            await self._node.delete_user(request.user_id)
        except StreamError as error:
            raise Unreachable(f"the deletion is not in the log: {error}") from error
        partition = partition_of(request.user_id, self._node.num_partitions)
        return admin_pb2.DeleteUserResponse(partition=partition)

    def _describe(self, user: UserInspection) -> admin_pb2.UserDescription:
        meta, history = user.meta, self._node.history
        recent_start = history.recent_start(meta.length)
        return admin_pb2.UserDescription(
            meta=meta_to_wire(meta),
            recent=meta.length - recent_start,
            mid_term=recent_start - min(recent_start, meta.lifecycle_boundary),
            lifecycle=max(0, meta.lifecycle_boundary - meta.first_position),
            chunks=user.num_chunks,
            stored_bytes=user.stored_bytes,
            dirty=user.dirty,
            summaries=[
                admin_pb2.SummaryDescription(
                    bundle_version=summary.bundle_version,
                    boundary=summary.boundary,
                    count=summary.count,
                    built_at_ms=summary.built_at_ms,
                    stored_bytes=stored_bytes,
                )
                for summary, stored_bytes in user.summaries
            ],
        )

    def _describe_store(self) -> admin_pb2.StoreDescription:
        node = self._node
        offsets, owned = stored_offsets(node.store), node.assigned()
        partitions = []
        for partition in sorted(owned | set(offsets)):
            end_offset = node.end_offset(partition)
            partitions.append(
                admin_pb2.PartitionDescription(
                    partition=partition,
                    next_offset=offsets.get(partition, 0),
                    users=sum(1 for _ in users_of(node.store, partition)),
                    owned=partition in owned,
                    end_offset=-1 if end_offset is None else end_offset,
                )
            )
        return admin_pb2.StoreDescription(
            partitions=partitions,
            disk_bytes=node.store.disk_bytes(),
            dirty_users=count_dirty(node.store),
            counters=dict(node.counters),
            recent_len=node.history.recent_len,
            mid_term_len=node.history.mid_term_len,
            chunk_len=node.history.chunk_len,
            max_history=node.history.max_history,
        )
