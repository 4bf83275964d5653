"""Small servers and fakes for tests of the gRPC services."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from model.catalogue import CatalogueItem
from model.query import AttendedInteraction, Explanation, ItemIds, Query, Recommended
from model.user_context import Reused
from protos.admin_pb2_grpc import add_AdminServiceServicer_to_server
from protos.recommender_pb2_grpc import add_RecommenderServiceServicer_to_server
from protos.state_pb2_grpc import add_StateServiceServicer_to_server
from services.admin_service import AdminService, NodeView
from services.checkpointer import Checkpointer
from services.credentials import ServerCredentials
from services.generation import Generator, UserReader
from services.grpc_server import GrpcServer
from services.recommender_service import RecommenderService
from services.request_log import RequestLog
from services.state_service import StateService
from services.tracing import Tracing
from state.arrivals import Arrivals, Deletion, Position
from state.interaction import Rows, empty_rows
from state.key_value_store import MemoryStore
from state.partition_stores import PartitionStores
from state.summary import Summary
from state.user_delta import UserSegments
from state.user_state import UserState
from state.user_store import UserStore
from stream.owed_summaries import Backlog
from stream.phases import Phase
from stream.progress import PartitionProgress
from stream.topics import partition_of
from tests.state.builders import SMALL, START_MS, make_rows

NUM_PARTITIONS = 3


@dataclass
class FakeOwner:
    """A state node's services on an in-memory store."""

    stores: PartitionStores = field(
        default_factory=lambda: PartitionStores(lambda _: MemoryStore(), SMALL)
    )
    assigned: set[int] = field(default_factory=lambda: set(range(NUM_PARTITIONS)))
    outcomes: list[str] = field(default_factory=list)
    """What became of jobs."""
    wakes: int = 0
    deleted: list[str] = field(default_factory=list)
    stuck_at: int | None = None
    """Offset of a request that stays in the log, not applied."""
    checkpoints: Checkpointer | None = None
    is_frozen: bool = False
    """Reads are heard and never answered."""
    reads: int = 0

    def __post_init__(self) -> None:
        for partition in range(NUM_PARTITIONS):
            self.stores.open(partition)

    def store_of(self, user: str) -> UserStore:
        return self.stores.get(partition_of(user, NUM_PARTITIONS))

    def wake(self) -> None:
        self.wakes += 1

    def progressed(self, user_id: str, bundle_version: str = "") -> None:
        self.outcomes.append(f"{user_id} progressed")

    def released(self, user_id: str, bundle_version: str = "") -> None:
        self.outcomes.append(f"{user_id} released")

    def completed(self, user_id: str, bundle_version: str = "") -> None:
        self.outcomes.append(f"{user_id} completed")

    def failed(self, user_id: str, reason: str, bundle_version: str = "") -> None:
        self.outcomes.append(f"{user_id} failed: {reason}")

    async def delete(self, user: str) -> None:
        """As if the deletion went through the log."""
        self.deleted.append(user)
        await self.forget(user, 0)

    async def forget(self, user: str, item_id: int) -> int:
        """As if the request went through the log."""
        if self.stuck_at is not None:
            return self.stuck_at
        store = self.store_of(user)
        position = store.position()
        offset = position.next_offset if position else 0
        deletion = Deletion(user, offset, START_MS + 1_000, item_id)
        end = Position(offset + 1, 0)
        store.apply(Arrivals(store.partition, end, [], np.arange(0), empty_rows(), [deletion]))
        return offset

    def add(self, user: str, count: int, without: int = 0) -> None:
        """`count` more interactions of a user, but for the one with the item `without`."""
        store = self.store_of(user)
        position = store.position()
        start = position.next_offset if position else 0
        rows = make_rows(list(range(start, start + count)), first_item=start + 1)
        offsets = np.arange(start, start + count)
        wanted = rows["item_id"] != without
        end, users = Position(start + count, 0), [user.encode()] * int(wanted.sum())
        store.apply(Arrivals(store.partition, end, users, offsets[wanted], rows[wanted]))

    @contextlib.asynccontextmanager
    async def serving(
        self, credentials: ServerCredentials | None = None, tracing: Tracing | None = None
    ) -> AsyncIterator[str]:
        """The address of the running services."""
        names = ["gemstream.v1.StateService", "gemstream.v1.AdminService"]
        server = GrpcServer("127.0.0.1:0", names, credentials, tracing)
        service = _FreezingService(self.stores, NUM_PARTITIONS, lambda: self.assigned, self)
        service.owner = self
        node = NodeView(
            self.stores,
            NUM_PARTITIONS,
            lambda: dict.fromkeys(self.assigned, Phase.READY),
            lambda _: PartitionProgress(36, 40, 4, 1.5),
            {"late": 2},
            self.delete,
            self.forget,
            self.checkpoints,
            lambda: Backlog(users=1, resting=1, oldest_s=2.5),
        )
        add_StateServiceServicer_to_server(service, server.server)
        add_AdminServiceServicer_to_server(AdminService(node), server.server)
        address = await server.start()
        await server.set_serving(True)
        try:
            yield address
        finally:
            await server.stop()


class _FreezingService(StateService):
    owner: FakeOwner

    async def GetUserState(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.owner.reads += 1
        if self.owner.is_frozen:
            await asyncio.Event().wait()
        return await super().GetUserState(request, context)


@dataclass(frozen=True)
class FakeContext:
    user: UserSegments
    num_bytes: int = 100
    num_keys: tuple[int, int] = (3, 1)


class FakeRecommender:
    """Recommends the user's own newest items; popular is 900 and up."""

    bundle_version = "v1"
    history = SMALL

    def encode(self, user: UserSegments, previous: Any = None) -> Any:
        return FakeContext(user), Reused()

    def answer(
        self, contexts: Sequence[Any], queries: Sequence[Query], check: Callable[[], None]
    ) -> list[Sequence[Recommended]]:
        check()
        pairs = zip(contexts, queries, strict=True)
        return [self.recommend(context.user.state, query) for context, query in pairs]

    def recommend(self, state: UserState, query: Query) -> Sequence[Recommended]:
        return self._answer(state.rows["item_id"][::-1].tolist(), query)

    def popular(self, query: Query) -> Sequence[Recommended]:
        return self._answer(range(900, 1_900), query)

    def explain(
        self, state: UserState, query: Query, found: Sequence[Recommended]
    ) -> Sequence[Explanation]:
        last = AttendedInteraction(CatalogueItem(7), START_MS, 0.5)
        one = Explanation(recent=0.5, mid_term=0.25, lifecycle=0.0, repeats=0.25, attended=(last,))
        return [one] * len(found)

    def pick(self, item_ids: ItemIds, scores: Any, query: Query) -> Sequence[Recommended]:
        """It knows items below 2,000."""
        return self._answer((item for item in item_ids.tolist() if item < 2_000), query)

    def _answer(self, items: Iterable[int], query: Query) -> Sequence[Recommended]:
        excluded = query.filter.exclude | set(query.filter.exclude_ids.tolist())
        kept = [item for item in items if item not in excluded]
        return [
            Recommended(CatalogueItem(item, title="thing"), -1.0, (1, 2, 3))
            for item in kept[: query.k]
        ]


@contextlib.asynccontextmanager
async def recommending(
    users: UserReader,
    recommender: Any = None,
    *,
    log_requests: bool = False,
    credentials: ServerCredentials | None = None,
    tracing: Tracing | None = None,
    counted: Counter[tuple[str, str]] | None = None,
) -> AsyncIterator[str]:
    """The address of a RecommenderService with a fake network, which counts users in `counted`."""
    names = ["gemstream.v1.RecommenderService"]
    server = GrpcServer("127.0.0.1:0", names, credentials, tracing)
    with ThreadPoolExecutor(1) as executor:
        fake: Any = recommender or FakeRecommender()
        generator = Generator(fake, users, executor)
        running = asyncio.create_task(generator.run())
        service = RecommenderService(
            lambda _: contextlib.nullcontext(generator), RequestLog(enabled=log_requests)
        )
        if counted is not None:
            service.users = counted
        add_RecommenderServiceServicer_to_server(service, server.server)
        address = await server.start()
        await server.set_serving(True)
        try:
            yield address
        finally:
            await server.stop()
            running.cancel()


class SumCompressor:
    """Adds item ids: a summary that is easy to predict."""

    bundle_version = "v1"

    def __init__(self) -> None:
        self.chunks_seen = 0

    def roll(
        self, base: Summary | None, chunks: Sequence[Rows], end_boundary: int, now_ms: int
    ) -> Summary:
        self.chunks_seen += len(chunks)
        total = int.from_bytes(base.accumulators, "big") if base else 0
        total += sum(int(chunk["item_id"].sum()) for chunk in chunks)
        return Summary(
            bundle_version=self.bundle_version,
            boundary=end_boundary,
            count=(base.count if base else 0) + sum(map(len, chunks)),
            accumulators=total.to_bytes(8, "big"),
            tokens=np.full((2, 3), total, np.float32),
            built_at_ms=now_ms,
        )
