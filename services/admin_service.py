"""AdminService over gRPC: what the store holds, for operators."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc.aio

from protos import admin_pb2, admin_pb2_grpc
from services.checkpointer import Checkpointer, CheckpointLog
from services.errors import InvalidRequest, NotFound, Unreachable
from services.interaction_messages import interaction_to_wire
from services.state_messages import meta_to_wire
from state.checkpoints import Taken
from state.errors import StoreClosed
from state.inspection import UserInspection, count_dirty, inspect_user
from state.interaction import check_item_id, check_user_id
from state.partition_stores import PartitionStores
from state.user_store import UserStore
from stream.errors import StreamError
from stream.owed_summaries import Backlog
from stream.phases import Phase
from stream.progress import PartitionProgress
from stream.topics import partition_of

Context = grpc.aio.ServicerContext[Any, Any]
_Sent = TypeVar("_Sent")

_MAX_NEWEST = 256
_LOG_TIMEOUT_S = 10.0
_MAX_WAIT_MS = 60_000
_LOOK_EVERY_S = 0.05
_MAX_NAMED = 100


async def _into_the_log(what: str, sending: Awaitable[_Sent]) -> _Sent:
    """What `sending` returns. Raises Unreachable, naming `what`, where the log does not take it in time."""
    try:
        async with asyncio.timeout(_LOG_TIMEOUT_S):
            return await sending
    except TimeoutError as error:
        raise Unreachable(
            f"Kafka has not taken {what} for {_LOG_TIMEOUT_S:.0f} s; ask again once it answers"
        ) from error
    except StreamError as error:
        raise Unreachable(f"{what} is not in the log: {error}") from error


@dataclass(frozen=True)
class NodeView:
    """What the service may see of its node."""

    stores: PartitionStores
    num_partitions: int
    phases: Callable[[], Mapping[int, Phase]]
    """Of every assigned partition."""
    progress: Callable[[int], PartitionProgress]
    counters: Mapping[str, int]
    delete_user: Callable[[str], Awaitable[None]]
    """Puts a deletion into the log. Raises StreamError."""
    forget: Callable[[str, int], Awaitable[int]]
    """Puts a request to forget one item of a user into the log; returns its offset. Raises StreamError."""
    checkpoints: Checkpointer | None = None
    """None where no checkpoints are kept."""
    backlog: Callable[[], Backlog | None] = lambda: None
    """Of compression; None while not known."""


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
        store = self._node.stores.get(partition)
        user = await asyncio.to_thread(_inspect, store, request.user_id)
        if user is None:
            raise NotFound(f"no state for user {request.user_id!r}")
        description = self._describe(user)
        description.user_id, description.partition = request.user_id, partition
        description.owned = self._node.phases().get(partition) is Phase.READY
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
        await _into_the_log("the deletion", self._node.delete_user(request.user_id))
        partition = partition_of(request.user_id, self._node.num_partitions)
        return admin_pb2.DeleteUserResponse(partition=partition)

    async def DeleteInteractions(
        self, request: admin_pb2.DeleteInteractionsRequest, context: Context
    ) -> admin_pb2.DeleteInteractionsResponse:
        """See protos/admin.proto."""
        check_user_id(request.user_id)
        check_item_id(request.item_id)
        partition = partition_of(request.user_id, self._node.num_partitions)
        self._check_not_quarantined(partition, request.user_id)
        offset = await _into_the_log(
            "the request to forget", self._node.forget(request.user_id, request.item_id)
        )
        wait_s = min(request.wait_ms, _MAX_WAIT_MS) / 1_000
        applied = await self._is_applied(partition, offset, wait_s)
        self._check_not_quarantined(partition, request.user_id)
        return admin_pb2.DeleteInteractionsResponse(
            partition=partition, offset=offset, applied=applied
        )

    def _check_not_quarantined(self, partition: int, user_id: str) -> None:
        """Raises DamagedUsers for one whose requests to forget an item become dead letters."""
        if partition in self._node.stores.partitions():
            self._node.stores.get(partition).quarantine.check(user_id)

    async def _is_applied(self, partition: int, offset: int, wait_s: float) -> bool:
        """Whether this node applied a record within `wait_s`. It may own the partition no longer, or not yet."""
        give_up_at = time.monotonic() + wait_s
        while True:
            try:
                position = await asyncio.to_thread(self._node.stores.get(partition).position)
            except StoreClosed:
                position = None
            if position is not None and position.next_offset > offset:
                return True
            if time.monotonic() > give_up_at:
                return False
            await asyncio.sleep(_LOOK_EVERY_S)

    async def TakeCheckpoints(
        self, request: admin_pb2.TakeCheckpointsRequest, context: Context
    ) -> admin_pb2.TakeCheckpointsResponse:
        """See protos/admin.proto."""
        if self._node.checkpoints is None:
            raise InvalidRequest(
                "this node keeps no checkpoints: set `uri` in [checkpoints] and start it again"
            )
        partition = request.partition if request.HasField("partition") else None
        taken, failures = await self._node.checkpoints.take(
            partition, prune=request.prune, full=request.full
        )
        return admin_pb2.TakeCheckpointsResponse(
            checkpoints=[_describe_checkpoint(each) for each in taken],
            failures=[
                admin_pb2.CheckpointFailure(partition=failed, reason=reason)
                for failed, reason in failures.items()
            ],
        )

    def _describe(self, user: UserInspection) -> admin_pb2.UserDescription:
        meta, history = user.meta, self._node.stores.history
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
        node, history = self._node, self._node.stores.history
        stores = [node.stores.get(partition) for partition in node.stores.partitions()]
        backlog = node.backlog()
        return admin_pb2.StoreDescription(
            partitions=[self._describe_partition(store) for store in stores],
            disk_bytes=sum(store.database.disk_bytes() for store in stores),
            dirty_users=sum(count_dirty(store.database) for store in stores),
            counters=dict(node.counters),
            recent_len=history.recent_len,
            mid_term_len=history.mid_term_len,
            chunk_len=history.chunk_len,
            max_history=history.max_history,
            resting_users=backlog.resting if backlog else 0,
            oldest_dirty_s=backlog.oldest_s if backlog else None,
        )

    def _describe_partition(self, store: UserStore) -> admin_pb2.PartitionDescription:
        position, progress = store.position(), self._node.progress(store.partition)
        phase = self._node.phases().get(store.partition)
        log = self._node.checkpoints.log if self._node.checkpoints else CheckpointLog()
        last = log.last.get(store.partition)
        return admin_pb2.PartitionDescription(
            partition=store.partition,
            next_offset=position.next_offset if position else 0,
            users=store.num_users(),
            owned=phase is not None,
            end_offset=-1 if progress.end_offset is None else progress.end_offset,
            lag_records=progress.lag_records,
            lag_s=progress.lag_s,
            phase=phase.value if phase else "closing",
            holes=[
                admin_pb2.Hole(
                    start_offset=hole.start_offset,
                    end_offset=hole.end_offset,
                    accepted_at_ms=hole.accepted_at_ms,
                )
                for hole in store.holes()
            ],
            checkpoint=None if last is None else _describe_checkpoint(last),
            checkpoint_failures=log.failures[store.partition],
            quarantined_users=sorted(store.quarantine.users)[:_MAX_NAMED],
            num_quarantined_users=len(store.quarantine.users),
        )


def _inspect(store: UserStore, user_id: str) -> UserInspection | None:
    with store.quarantine.finding(user_id):
        return inspect_user(store.database, user_id)


def _describe_checkpoint(taken: Taken) -> admin_pb2.CheckpointDescription:
    manifest = taken.manifest
    return admin_pb2.CheckpointDescription(
        partition=manifest.partition,
        next_offset=manifest.next_offset,
        created_at_ms=manifest.created_at_ms,
        files=len(manifest.files),
        bytes=manifest.num_bytes,
        uploaded_bytes=taken.uploaded_bytes,
        seconds=taken.seconds,
        unchanged=not taken.is_new,
    )
