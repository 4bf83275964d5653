"""RecommenderService over gRPC: read the user's state, generate, say what was missing."""

import logging
from typing import Any, Protocol

import grpc.aio

from model.query import ItemFilter, Query, Recommended, Source
from protos import item_pb2, recommender_pb2, recommender_pb2_grpc
from services.errors import DataLoss, InvalidRequest, Unreachable
from services.generation import Generated, UserView
from state.interaction import check_user_id

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Degradation = recommender_pb2.Degradation

SOURCES = {
    Source.PERSONAL: recommender_pb2.SOURCE_PERSONAL,
    Source.TRENDING: recommender_pb2.SOURCE_TRENDING,
    Source.POPULAR: recommender_pb2.SOURCE_POPULAR,
}

DEFAULT_K = 10
MAX_K = 500
MAX_BEAM_WIDTH = 1_000


class Generator(Protocol):
    """What answers; services.generation.Generator is one."""

    @property
    def bundle_version(self) -> str: ...

    async def recommend(self, user_id: str, query: Query) -> Generated:
        """The best items for a user. Raises Unreachable, DataLoss."""
        ...

    async def popular(self, query: Query) -> Generated:
        """What everybody takes."""
        ...


class RecommenderService(recommender_pb2_grpc.RecommenderServiceServicer):
    """Checks requests, asks the generator, says what was missing."""

    def __init__(self, generator: Generator) -> None:
        """It does all the work."""
        self._generator = generator

    async def Recommend(
        self, request: recommender_pb2.RecommendRequest, context: Context
    ) -> recommender_pb2.RecommendResponse:
        """See protos/recommender.proto."""
        _check(request)
        query = Query(
            k=request.k or DEFAULT_K,
            beam_width=request.beam_width or None,
            filter=ItemFilter(exclude=frozenset(request.exclude_item_ids)),
        )
        response = recommender_pb2.RecommendResponse()
        try:
            generated = await self._generator.recommend(request.user_id, query)
        except (Unreachable, DataLoss) as error:
            log.warning("answering without the user's state: %s", error)
            response.degraded.append(Degradation.DEGRADATION_STATE_UNAVAILABLE)
            generated = await self._generator.popular(query)
        response.bundle_version = generated.bundle_version
        if generated.view is None:
            first = generated.items[0].source if generated.items else Source.POPULAR
            response.source = SOURCES[first]
        else:
            response.source = recommender_pb2.SOURCE_PERSONAL
            _describe(response, generated.view)
        response.items.extend(_item(entry) for entry in generated.items)
        return response


def _check(request: recommender_pb2.RecommendRequest) -> None:
    check_user_id(request.user_id)
    if request.k > MAX_K:
        raise InvalidRequest(f"k is {request.k}; it must be 1 to {MAX_K}, or 0 for {DEFAULT_K}")
    if request.beam_width > MAX_BEAM_WIDTH:
        raise InvalidRequest(
            f"beam_width is {request.beam_width}; it must be 1 to {MAX_BEAM_WIDTH}, or 0 for the server's"
        )


def _describe(response: recommender_pb2.RecommendResponse, view: UserView) -> None:
    meta = view.meta
    covered = meta.first_position if view.summary_boundary is None else view.summary_boundary
    response.state_version = meta.version
    response.freshness.newest_event_time_ms = meta.newest_event_time_ms
    response.freshness.summary_lag = max(0, meta.lifecycle_boundary - covered)
    response.segments.recent = view.recent
    response.segments.mid_term = view.mid_term
    response.segments.lifecycle = view.lifecycle
    if meta.lifecycle_boundary and view.summary_boundary is None:
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
        source=SOURCES[entry.source],
    )
