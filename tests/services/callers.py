"""What callers of RecommenderService do, over a real channel."""

from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2

from model.query import Query, Recommended
from protos import recommender_pb2 as wire, recommender_pb2_grpc
from state.user_state import UserState
from tests.services.nodes import FakeRecommender

NOBODY = "127.0.0.1:1"


async def recommend(address: str, **fields: Any) -> wire.RecommendResponse:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = recommender_pb2_grpc.RecommenderServiceStub(channel)
        return await stub.Recommend(wire.RecommendRequest(**fields), timeout=10)


async def refusal(address: str, **fields: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await recommend(address, **fields)
    return caught.value


async def recommend_batch(
    address: str, requests: Sequence[wire.RecommendRequest]
) -> Sequence[wire.RecommendBatchEntry]:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = recommender_pb2_grpc.RecommenderServiceStub(channel)
        reply = await stub.RecommendBatch(wire.RecommendBatchRequest(requests=requests), timeout=10)
        return reply.entries


def ids(reply: wire.RecommendResponse) -> list[int]:
    return [entry.item.item_id for entry in reply.items]


class Failing(FakeRecommender):
    def __init__(self, error: Exception) -> None:
        self.error = error

    def recommend(self, state: UserState, query: Query) -> Sequence[Recommended]:
        raise self.error


def retry_after_ms(status: status_pb2.Status) -> int:
    info = error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(info)
    return int(info.retry_delay.ToMilliseconds())
