"""RecommenderService over gRPC: read the user's state, generate, say what was missing."""

import asyncio
import logging
from collections.abc import Sequence, Set as AbstractSet
from concurrent.futures import Executor
from typing import Any, Protocol

import grpc.aio

from protos import item_pb2, recommender_pb2, recommender_pb2_grpc
from services.errors import DataLoss, InvalidRequest, Unreachable
from state.interaction import check_user_id
from state.segments import HistoryConfig
from state.user_state import UserState

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Degradation = recommender_pb2.Degradation

DEFAULT_K = 10
MAX_K = 500
MAX_BEAM_WIDTH = 1_000


class UserReader(Protocol):
    """Where user states are read."""

    async def read_user(self, user_id: str, bundle_version: str) -> UserState | None:
        """The user's state; None when there is none. Raises Unreachable."""
        ...


class CatalogueItem(Protocol):
    """An item as the recommender knows it."""

    @property
    def item_id(self) -> int: ...
    @property
    def author_id(self) -> int: ...
    @property
    def tag(self) -> int: ...
    @property
    def title(self) -> str: ...
    @property
    def duration_ms(self) -> int: ...


class Recommended(Protocol):
    """One recommended item."""

    @property
    def item(self) -> CatalogueItem: ...
    @property
    def score(self) -> float: ...
    @property
    def sid(self) -> tuple[int, ...]: ...


class Recommender(Protocol):
    """What generates; model.recommender.Recommender is one."""

    def recommend(
        self, state: UserState, k: int, exclude: AbstractSet[int], beam_width: int | None
    ) -> Sequence[Recommended]:
        """At most k items for a user, best first."""
        ...

    def popular(self, k: int, exclude: AbstractSet[int]) -> Sequence[Recommended]:
        """At most k items that everybody takes."""
        ...


class RecommenderService(recommender_pb2_grpc.RecommenderServiceServicer):
    """One request at a time goes through the network, off the event loop."""

    def __init__(
        self,
        recommender: Recommender,
        users: UserReader,
        bundle_version: str,
        history: HistoryConfig,
        executor: Executor,
    ) -> None:
        """`executor` runs the network; `history` is the one the bundle was trained with."""
        self._recommender = recommender
        self._users = users
        self._bundle_version = bundle_version
        self._history = history
        self._executor = executor

    async def Recommend(
        self, request: recommender_pb2.RecommendRequest, context: Context
    ) -> recommender_pb2.RecommendResponse:
        """See protos/recommender.proto."""
        _check(request)
        response = recommender_pb2.RecommendResponse(bundle_version=self._bundle_version)
        try:
            state = await self._users.read_user(request.user_id, self._bundle_version)
        except (Unreachable, DataLoss) as error:
            log.warning("answering with popular items: %s", error)
            response.degraded.append(Degradation.DEGRADATION_STATE_UNAVAILABLE)
            state = None
        k, exclude = request.k or DEFAULT_K, frozenset(request.exclude_item_ids)
        if state is None:
            response.source = recommender_pb2.SOURCE_POPULAR
            recommended = await self._run(self._recommender.popular, k, exclude)
        else:
            response.source = recommender_pb2.SOURCE_PERSONAL
            _describe_state(response, state, self._history)
            recommended = await self._run(
                self._recommender.recommend, state, k, exclude, request.beam_width or None
            )
        response.items.extend(_item(entry) for entry in recommended)
        return response

    async def _run(self, function: Any, *arguments: Any) -> Sequence[Recommended]:
        loop = asyncio.get_running_loop()
        outcome: Sequence[Recommended] = await loop.run_in_executor(
            self._executor, function, *arguments
        )
        return outcome


def _check(request: recommender_pb2.RecommendRequest) -> None:
    check_user_id(request.user_id)
    if request.k > MAX_K:
        raise InvalidRequest(f"k is {request.k}; it must be 1 to {MAX_K}, or 0 for {DEFAULT_K}")
    if request.beam_width > MAX_BEAM_WIDTH:
        raise InvalidRequest(
            f"beam_width is {request.beam_width}; it must be 1 to {MAX_BEAM_WIDTH}, or 0 for the server's"
        )


def _describe_state(
    response: recommender_pb2.RecommendResponse, state: UserState, history: HistoryConfig
) -> None:
    meta, summary = state.meta, state.summary
    covered = summary.boundary if summary else meta.first_position
    response.state_version = meta.version
    response.freshness.newest_event_time_ms = meta.newest_event_time_ms
    response.freshness.summary_lag = max(0, meta.lifecycle_boundary - covered)
    response.segments.recent = len(state.recent(history))
    response.segments.mid_term = len(state.mid_term(history))
    response.segments.lifecycle = summary.count if summary else 0
    if meta.lifecycle_boundary and summary is None:
        response.degraded.append(Degradation.DEGRADATION_SUMMARY_MISSING)
    elif response.freshness.summary_lag:
        response.degraded.append(Degradation.DEGRADATION_SUMMARY_BEHIND)


def _item(entry: Recommended) -> recommender_pb2.RecommendedItem:
    item = entry.item
    return recommender_pb2.RecommendedItem(
        item=item_pb2.Item(
            item_id=item.item_id,
            author_id=item.author_id,
            tag=item.tag,
            title=item.title,
            duration_ms=item.duration_ms,
        ),
        score=entry.score,
        sid=entry.sid,
    )
