"""Several requests in one call: every entry has its own status, and is counted."""

from collections import Counter

import grpc
import grpc.aio
import pytest
from google.rpc import code_pb2

from protos import recommender_pb2 as wire
from services.clients import StateClient
from services.errors import Overloaded
from tests.services.callers import (
    NOBODY,
    Failing,
    ids,
    recommend,
    recommend_batch,
    refusal,
    retry_after_ms,
)
from tests.services.nodes import FakeOwner, recommending


async def test_one_bad_entry_leaves_the_others_of_a_batch() -> None:
    owner = FakeOwner()
    owner.add("ann", 20)
    nonsense = "nonsense"
    requests = [
        wire.RecommendRequest(user_id="ann", k=2, request_id="first"),
        wire.RecommendRequest(user_id=""),
        wire.RecommendRequest(user_id="ann", page_token=nonsense),
        wire.RecommendRequest(user_id="ann", request_id="\x7f"),
        wire.RecommendRequest(user_id="nobody", k=1),
    ]
    async with owner.serving() as state, StateClient(state, 5.0) as users:
        async with recommending(users) as address:
            entries = await recommend_batch(address, requests)
    invalid = code_pb2.INVALID_ARGUMENT
    assert [entry.status.code for entry in entries] == [0, invalid, invalid, invalid, 0]
    assert [entry.HasField("response") for entry in entries] == [True, False, False, False, True]
    assert entries[0].request_id == entries[0].response.request_id == "first"
    assert ids(entries[0].response) == [20, 19]
    assert "user_id has 0 bytes" in entries[1].status.message
    assert entries[1].request_id
    assert ids(entries[4].response) == [900]


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (Overloaded(2), code_pb2.RESOURCE_EXHAUSTED, "ask again in 2 s"),
        (RuntimeError("secret"), code_pb2.INTERNAL, "internal error; see the server's log"),
    ],
)
async def test_a_batch_has_the_same_codes(error: Exception, code: int, text: str) -> None:
    owner = FakeOwner()
    owner.add("ann", 2)
    async with owner.serving() as state, StateClient(state, 5.0) as users:
        async with recommending(users, Failing(error)) as address:
            (entry,) = await recommend_batch(address, [wire.RecommendRequest(user_id="ann")])
    assert entry.status.code == code
    assert text in entry.status.message
    if isinstance(error, Overloaded):
        assert retry_after_ms(entry.status) == 2_000


@pytest.mark.parametrize(
    ("requests", "text"),
    [
        ([], "requests has 0 entries; it must have 1 to 100"),
        ([wire.RecommendRequest(user_id="a")] * 101, "requests has 101 entries"),
        ([wire.RecommendRequest(user_id="a", k=500)] * 21, "ask for 10500 items together"),
    ],
)
async def test_batches_are_bounded(requests: list[wire.RecommendRequest], text: str) -> None:
    async with StateClient(NOBODY, 0.3) as users, recommending(users) as address:
        with pytest.raises(grpc.aio.AioRpcError, match=text) as caught:
            await recommend_batch(address, requests)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_every_user_of_a_batch_is_counted() -> None:
    owner, counted = FakeOwner(), Counter[tuple[str, str]]()
    owner.add("ann", 20)
    async with owner.serving() as state, StateClient(state, 5.0) as users:
        async with recommending(users, counted=counted) as address:
            await recommend(address, user_id="ann")
            await refusal(address, user_id="")
            requests = [wire.RecommendRequest(user_id=user) for user in ("ann", "bob", "", "cy")]
            await recommend_batch(address, requests)
    assert counted == {
        ("Recommend", "OK"): 1,
        ("Recommend", "INVALID_ARGUMENT"): 1,
        ("RecommendBatch", "OK"): 3,
        ("RecommendBatch", "INVALID_ARGUMENT"): 1,
    }
