"""StateService over gRPC: the owner's side of reading users and exchanging summaries."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio

from protos import state_pb2, state_pb2_grpc
from services.errors import InvalidRequest, NotFound, Unreachable
from services.state_messages import rolled_to_wire, summary_from_wire, user_to_wire
from state.interaction import check_user_id
from state.segments import HistoryConfig
from state.user_store import UserStore
from stream.topics import partition_of

Context = grpc.aio.ServicerContext[Any, Any]

DEFAULT_MAX_CHUNKS = 64
_MAX_CHUNKS = 1_024
_MAX_ASKED = 100_000
_MAX_SUMMARY_BYTES = 4 << 20


class StateService(state_pb2_grpc.StateServiceServicer):
    """Reads go to the store directly; everything runs off the event loop."""

    def __init__(
        self,
        store: UserStore,
        num_partitions: int,
        assigned: Callable[[], set[int]],
        on_summary: Callable[[str], None],
        on_dirty: Callable[[], None],
    ) -> None:
        """`assigned` names the partitions owned now.

        `on_summary` hears the user of every summary that came back, `on_dirty` that a user is owed one.
        """
        self._store = store
        self._num_partitions = num_partitions
        self._assigned = assigned
        self._on_summary = on_summary
        self._on_dirty = on_dirty
        self._asked: set[tuple[str, str]] = set()

    async def GetUserState(
        self, request: state_pb2.GetUserStateRequest, context: Context
    ) -> state_pb2.UserState:
        """See protos/state.proto."""
        partition = self._owned_partition(request.user_id)
        stored = await asyncio.to_thread(
            self._store.read_user, partition, request.user_id, request.bundle_version
        )
        if stored is None:
            raise NotFound(f"no state for user {request.user_id!r}")
        if stored.summary is None and stored.meta.lifecycle_boundary:
            await self._owe_summary(partition, request)
        return user_to_wire(stored)

    async def GetRolled(
        self, request: state_pb2.GetRolledRequest, context: Context
    ) -> state_pb2.Rolled:
        """See protos/state.proto."""
        partition = self._owned_partition(request.user_id)
        max_chunks = min(request.max_chunks or DEFAULT_MAX_CHUNKS, _MAX_CHUNKS)
        rolled = await asyncio.to_thread(
            self._store.read_rolled, partition, request.user_id, request.bundle_version, max_chunks
        )
        if rolled is None:
            raise NotFound(f"no state for user {request.user_id!r}")
        if not rolled.chunks:
            await asyncio.to_thread(
                self._store.clear_if_complete, partition, request.user_id, request.bundle_version
            )
        return rolled_to_wire(rolled)

    async def PutSummary(
        self, request: state_pb2.PutSummaryRequest, context: Context
    ) -> state_pb2.PutSummaryResponse:
        """See protos/state.proto."""
        partition = self._owned_partition(request.user_id)
        _check_summary(request.summary, self._store.history)
        stored, complete = await asyncio.to_thread(
            self._store.put_summary,
            partition,
            request.user_id,
            summary_from_wire(request.summary),
            request.base_boundary,
            request.epoch,
        )
        self._on_summary(request.user_id)
        return state_pb2.PutSummaryResponse(stored=stored, complete=complete)

    async def _owe_summary(self, partition: int, request: state_pb2.GetUserStateRequest) -> None:
        """A bundle asks for a user that was compressed under another one only: have it done.

        Once per user and bundle: where no worker has that bundle, asking again would not help.
        """
        asked = (request.user_id, request.bundle_version)
        if not request.bundle_version or asked in self._asked:
            return
        if len(self._asked) >= _MAX_ASKED:
            self._asked.clear()
        self._asked.add(asked)
        if await asyncio.to_thread(self._store.mark_dirty, partition, request.user_id):
            self._on_dirty()

    def _owned_partition(self, user_id: str) -> int:
        check_user_id(user_id)
        partition = partition_of(user_id, self._num_partitions)
        if partition not in self._assigned():
            raise Unreachable(
                f"partition {partition} of user {user_id!r} is not owned by this node now"
            )
        return partition


def _check_summary(summary: state_pb2.Summary, history: HistoryConfig) -> None:
    """What can be known of a summary without its bundle. Raises InvalidRequest."""
    if not summary.bundle_version:
        raise InvalidRequest("summary.bundle_version is empty; a summary names its bundle")
    if summary.boundary % history.chunk_len or not 0 < summary.count <= summary.boundary:
        raise InvalidRequest(
            f"summary.boundary is {summary.boundary} and count {summary.count}; the boundary must be a multiple of "
            f"chunk_len ({history.chunk_len}), the count above 0 and at most the boundary"
        )
    num_bytes = len(summary.accumulators) + len(summary.tokens)
    if not (summary.accumulators and summary.tokens) or num_bytes > _MAX_SUMMARY_BYTES:
        raise InvalidRequest(
            f"summary has {len(summary.accumulators)} bytes of accumulators and {len(summary.tokens)} of tokens; "
            f"both are needed, together at most {_MAX_SUMMARY_BYTES}"
        )
