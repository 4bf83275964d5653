"""RecommenderService over gRPC: check a request, ask the generator, say what was missing."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, cast

import grpc.aio
import numpy as np

from model.query import Query
from protos import recommender_pb2, recommender_pb2_grpc
from services.errors import DataLoss, Unreachable
from services.generation import Generated
from services.page_token import MAX_SHOWN, ItemIds, make_page_token, read_page_token
from services.recommend_request import check_batch, check_request, query_of, request_id_of
from services.recommendation_messages import Degradation, fill_response
from services.request_log import RequestLog
from services.status_codes import rpc_status, status_code
from services.tracing import annotate

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

_REQUEST_ID, _TRACEPARENT = "x-request-id", "traceparent"
_BATCH_CONCURRENCY = 16
"""Requests of one batch at the same time: a batch does not fill the queue alone."""


class Generator(Protocol):
    """What answers; services.generation.Generator is one."""

    async def recommend(
        self,
        user_id: str,
        query: Query,
        *,
        exclude_seen: bool = False,
        explain: bool = False,
        deadline_s: float | None = None,
    ) -> Generated:
        """The best items for a user. Raises Unreachable, DataLoss, Overloaded, DeadlineExceeded."""
        ...

    async def popular(self, query: Query, *, deadline_s: float | None = None) -> Generated:
        """What everybody takes."""
        ...


Answering = Callable[[str], AbstractContextManager[Generator]]
"""Which generator answers a user, for as long as one request takes."""


class RecommenderService(recommender_pb2_grpc.RecommenderServiceServicer):
    """Nothing is kept between calls: a page token holds what the pages before have shown."""

    def __init__(self, answering: Answering, request_log: RequestLog | None = None) -> None:
        """`answering` says who does the work."""
        self._answering = answering
        self._request_log = request_log or RequestLog()
        self.users: Counter[tuple[str, str]] = Counter()
        """Answered for, by method and name of the status; a batch has many."""

    async def Recommend(
        self, request: recommender_pb2.RecommendRequest, context: Context
    ) -> recommender_pb2.RecommendResponse:
        """See protos/recommender.proto."""
        request_id = request_id_of(request)
        context.set_trailing_metadata(((_REQUEST_ID, request_id),))
        annotate(request_id=request_id, surface=request.surface)
        annotate(**{f"context.{key}": value for key, value in request.context.items()})
        with self._counted("Recommend"):
            response = await self._answer(request, request_id, _deadline_s(context))
        annotate(items=len(response.items), source=response.source)
        annotate(**{f"{stage}_ms": spent for stage, spent in response.timings_ms.items()})
        self._request_log.answered(request, response, _metadata(context, _TRACEPARENT))
        return response

    async def RecommendBatch(
        self, request: recommender_pb2.RecommendBatchRequest, context: Context
    ) -> recommender_pb2.RecommendBatchResponse:
        """See protos/recommender.proto."""
        check_batch(request)
        slots, traceparent = asyncio.Semaphore(_BATCH_CONCURRENCY), _metadata(context, _TRACEPARENT)
        deadline_s = _deadline_s(context)

        async def entry(
            one: recommender_pb2.RecommendRequest,
        ) -> recommender_pb2.RecommendBatchEntry:
            async with slots:
                return await self._entry(one, traceparent, deadline_s)

        entries = await asyncio.gather(*map(entry, request.requests))
        failed = sum(one.status.code != 0 for one in entries)
        annotate(requests=len(entries), failed=failed)
        return recommender_pb2.RecommendBatchResponse(entries=entries)

    async def _entry(
        self, request: recommender_pb2.RecommendRequest, traceparent: str, deadline_s: float | None
    ) -> recommender_pb2.RecommendBatchEntry:
        entry = recommender_pb2.RecommendBatchEntry()
        try:
            entry.request_id = request_id_of(request)
            with self._counted("RecommendBatch"):
                response = await self._answer(request, entry.request_id, deadline_s)
            entry.response.CopyFrom(response)
        except Exception as error:
            entry.status.CopyFrom(rpc_status(error))
            if status_code(error) is grpc.StatusCode.INTERNAL:
                log.exception("request %s of a batch failed", entry.request_id)
        else:
            self._request_log.answered(request, entry.response, traceparent)
        return entry

    @contextmanager
    def _counted(self, method: str) -> Iterator[None]:
        """A user is answered for, or that fails."""
        code = grpc.StatusCode.OK
        try:
            yield
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        except Exception as error:
            code = status_code(error)
            raise
        finally:
            self.users[method, code.name] += 1

    async def _answer(
        self, request: recommender_pb2.RecommendRequest, request_id: str, deadline_s: float | None
    ) -> recommender_pb2.RecommendResponse:
        started_s = time.perf_counter()
        check_request(request)
        shown: ItemIds = np.zeros(0, np.uint64)
        if request.page_token:
            shown = read_page_token(request.page_token, request.user_id)
        query = query_of(request, shown)
        response = recommender_pb2.RecommendResponse(request_id=request_id)
        with self._answering(request.user_id) as generator:
            generated = await self._generate(generator, request, query, response, deadline_s)
        fill_response(response, generated)
        response.next_page_token = _next_page(request.user_id, query.k, shown, response)
        response.timings_ms["total"] = (time.perf_counter() - started_s) * 1e3
        return response

    async def _generate(
        self,
        generator: Generator,
        request: recommender_pb2.RecommendRequest,
        query: Query,
        response: recommender_pb2.RecommendResponse,
        deadline_s: float | None,
    ) -> Generated:
        """Personal items; popular ones where the state cannot be read, which `response` hears."""
        try:
            return await generator.recommend(
                request.user_id,
                query,
                exclude_seen=request.exclude_seen,
                explain=request.explain,
                deadline_s=deadline_s,
            )
        except (Unreachable, DataLoss) as error:
            log.warning("request %s: answering with popular items: %s", response.request_id, error)
            response.degraded.append(Degradation.DEGRADATION_STATE_UNAVAILABLE)
            if request.exclude_seen:
                response.degraded.append(Degradation.DEGRADATION_SEEN_INCOMPLETE)
            return await generator.popular(query, deadline_s=deadline_s)


def _next_page(
    user_id: str, k: int, shown: ItemIds, response: recommender_pb2.RecommendResponse
) -> str:
    """Empty where this page is the last: there is nothing more, or MAX_SHOWN is reached."""
    items = np.array([entry.item.item_id for entry in response.items], np.uint64)
    if len(items) < k or len(items) + len(shown) >= MAX_SHOWN:
        return ""
    return make_page_token(user_id, np.concatenate([shown, items]))


def _deadline_s(context: Context) -> float | None:
    """When the caller stops waiting, as time.monotonic."""
    remaining_s = cast("float | None", context.time_remaining())  # None: the caller set none
    return None if remaining_s is None else time.monotonic() + remaining_s


def _metadata(context: Context, name: str) -> str:
    """The first value of that name in the call's metadata, or ""."""
    for key, value in context.invocation_metadata() or ():
        if key == name and isinstance(value, str):
            return value
    return ""
