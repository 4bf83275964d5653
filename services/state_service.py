"""StateService over gRPC: the owner's side of reading users and exchanging summaries."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import grpc.aio

from protos import state_pb2, state_pb2_grpc
from services.errors import InvalidRequest, NotFound, Unreachable
from services.state_messages import (
    known_from_wire,
    known_seen_from_wire,
    rolled_to_wire,
    seen_to_wire,
    summary_from_wire,
    user_to_wire,
)
from state.interaction import check_user_id
from state.partition_stores import PartitionStores
from state.segments import HistoryConfig
from state.summary import MAX_SUMMARY_BYTES
from state.user_store import UserStore
from stream.topics import partition_of

Context = grpc.aio.ServicerContext[Any, Any]

DEFAULT_MAX_CHUNKS = 64
_MAX_CHUNKS = 1_024
_MAX_ASKED = 100_000
_MAX_REASON = 1_000


class Outcomes(Protocol):
    """Who hears what became of a user's job; stream.compression_jobs.JobDispatcher is one.

    `bundle_version` is that of the bundle that is being rolled out, or "".
    """

    def wake(self) -> None:
        """A user is owed a summary."""
        ...

    def progressed(self, user_id: str, bundle_version: str = "") -> None:
        """A part of a summary came back, and the worker goes on."""
        ...

    def released(self, user_id: str, bundle_version: str = "") -> None:
        """A worker stopped without a fault."""
        ...

    def completed(self, user_id: str, bundle_version: str = "") -> None:
        """The summary ends at the boundary."""
        ...

    def failed(self, user_id: str, reason: str, bundle_version: str = "") -> None:
        """A worker met an error with this user."""
        ...


class StateService(state_pb2_grpc.StateServiceServicer):
    """Reads go to the store directly; everything runs off the event loop."""

    def __init__(
        self,
        stores: PartitionStores,
        num_partitions: int,
        served: Callable[[], set[int]],
        work: Outcomes,
    ) -> None:
        """`served` names the partitions owned now that have caught up; `work` hears what became of jobs."""
        self._stores = stores
        self._num_partitions = num_partitions
        self._served = served
        self._work = work
        self._asked: set[tuple[str, str]] = set()

    async def GetUserState(
        self, request: state_pb2.GetUserStateRequest, context: Context
    ) -> state_pb2.UserState:
        """See protos/state.proto."""
        store = self._owner(request.user_id)
        known = known_from_wire(request.known) if request.HasField("known") else None
        stored = await asyncio.to_thread(
            store.read_user, request.user_id, request.bundle_version, known
        )
        if stored is None:
            raise NotFound(f"no state for user {request.user_id!r}")
        has_summary = stored.summary is not None or stored.summary_unchanged
        if stored.meta.lifecycle_boundary and not has_summary:
            await self._owe_summary(store, request)
        return user_to_wire(stored)

    async def GetSeenItems(
        self, request: state_pb2.GetSeenItemsRequest, context: Context
    ) -> state_pb2.SeenItems:
        """See protos/state.proto."""
        store = self._owner(request.user_id)
        known = known_seen_from_wire(request.known) if request.HasField("known") else None
        seen = await asyncio.to_thread(store.read_seen, request.user_id, known)
        if seen is None:
            raise NotFound(f"no state for user {request.user_id!r}")
        return seen_to_wire(seen)

    async def GetRolled(
        self, request: state_pb2.GetRolledRequest, context: Context
    ) -> state_pb2.Rolled:
        """See protos/state.proto."""
        store = self._owner(request.user_id)
        _check_in_use(store, request.bundle_version)
        max_chunks = min(request.max_chunks or DEFAULT_MAX_CHUNKS, _MAX_CHUNKS)
        rolled = await asyncio.to_thread(
            store.read_rolled, request.user_id, request.bundle_version, max_chunks
        )
        if rolled is None:
            raise NotFound(f"no state for user {request.user_id!r}")
        if not rolled.chunks:
            await asyncio.to_thread(
                store.clear_if_complete, request.user_id, request.bundle_version
            )
            self._work.released(request.user_id, store.bundles.mark_version(request.bundle_version))
        return rolled_to_wire(rolled)

    async def PutSummary(
        self, request: state_pb2.PutSummaryRequest, context: Context
    ) -> state_pb2.PutSummaryResponse:
        """See protos/state.proto."""
        store = self._owner(request.user_id)
        _check_summary(request.summary, self._stores.history)
        _check_in_use(store, request.summary.bundle_version)
        stored, complete = await asyncio.to_thread(
            store.put_summary,
            request.user_id,
            summary_from_wire(request.summary),
            request.base_boundary,
            request.epoch,
        )
        user_id = request.user_id
        version = store.bundles.mark_version(request.summary.bundle_version)
        if complete:
            self._work.completed(user_id, version)
        elif stored:
            self._work.progressed(user_id, version)
        else:
            self._work.released(user_id, version)
        return state_pb2.PutSummaryResponse(stored=stored, complete=complete)

    async def ReportFailure(
        self, request: state_pb2.ReportFailureRequest, context: Context
    ) -> state_pb2.ReportFailureResponse:
        """See protos/state.proto."""
        store = self._owner(request.user_id)
        bundles = store.bundles
        if not bundles.is_retired(request.bundle_version):
            version = bundles.mark_version(request.bundle_version)
            if request.user_id in store.quarantine.users:
                self._work.completed(request.user_id, version)  # nothing is owed until he is out
                return state_pb2.ReportFailureResponse()
            self._work.failed(request.user_id, request.reason[:_MAX_REASON], version)
        return state_pb2.ReportFailureResponse()

    async def _owe_summary(self, store: UserStore, request: state_pb2.GetUserStateRequest) -> None:
        """A bundle asks for a user that was compressed under another one only: have it done.

        Once per user and bundle: where no worker has that bundle, asking again would not help.
        """
        asked = (request.user_id, request.bundle_version)
        if not request.bundle_version or asked in self._asked:
            return
        if len(self._asked) >= _MAX_ASKED:
            self._asked.clear()
        self._asked.add(asked)
        if await asyncio.to_thread(store.mark_dirty, *asked):
            self._work.wake()

    def _owner(self, user_id: str) -> UserStore:
        check_user_id(user_id)
        partition = partition_of(user_id, self._num_partitions)
        if partition not in self._served():
            raise Unreachable(
                f"partition {partition} of user {user_id!r} is not served by this node now: it is another node's, or "
                "has not caught up yet"
            )
        return self._stores.get(partition)


def _check_in_use(store: UserStore, bundle_version: str) -> None:
    """Raises InvalidRequest for the bundle of a worker that should have been stopped."""
    if store.bundles.is_retired(bundle_version):
        raise InvalidRequest(
            f"bundle {bundle_version} is retired: stop its workers, or bring it back with `gemstream store rollout start`"
        )


def _check_summary(summary: state_pb2.Summary, history: HistoryConfig) -> None:
    """What can be known of a summary without its bundle. Raises InvalidRequest."""
    if not summary.bundle_version:
        raise InvalidRequest("summary.bundle_version is empty; a summary names its bundle")
    if summary.boundary % history.chunk_len or not 0 < summary.count <= summary.boundary:
        raise InvalidRequest(
            f"summary.boundary is {summary.boundary} and count {summary.count}; the boundary must be a multiple of "
            f"chunk_len ({history.chunk_len}), the count above 0 and at most the boundary"
        )
    num_bytes = len(summary.accumulators) + len(summary.tokens) + len(summary.item_statistics)
    if not (summary.accumulators and summary.tokens) or num_bytes > MAX_SUMMARY_BYTES:
        raise InvalidRequest(
            f"summary has {len(summary.accumulators)} bytes of accumulators, {len(summary.tokens)} of tokens and "
            f"{len(summary.item_statistics)} of item statistics; the first two are needed, and all together have at "
            f"most {MAX_SUMMARY_BYTES}"
        )
