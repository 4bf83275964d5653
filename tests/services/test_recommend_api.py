"""What callers of RecommenderService can ask for, over a real channel."""

import json
import logging
import time
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import status_pb2

from model.query import Query, Recommended
from protos import recommender_pb2 as wire, recommender_pb2_grpc
from services.clients import StateClient
from services.errors import DeadlineExceeded, Overloaded, Unreachable
from services.page_token import MAX_SHOWN
from state.user_delta import Known, UserDelta
from state.user_state import UserState
from tests.services.callers import (
    NOBODY,
    Failing,
    ids,
    recommend,
    recommend_batch,
    refusal,
    retry_after_ms,
)
from tests.services.nodes import FakeOwner, FakeRecommender, recommending
from tests.state.builders import START_MS


class Recorder(FakeRecommender):
    """Keeps the queries."""

    def __init__(self) -> None:
        self.queries: list[Query] = []

    def recommend(self, state: UserState, query: Query) -> Sequence[Recommended]:
        self.queries.append(query)
        return super().recommend(state, query)


async def test_every_filter_reaches_the_query() -> None:
    owner, recorder = FakeOwner(), Recorder()
    owner.add("ann", 20)
    async with owner.serving() as state, StateClient(state, 5.0) as users:
        async with recommending(users, recorder) as address:
            await recommend(
                address,
                user_id="ann",
                exclude_item_ids=[2**64 - 1],
                allow_tags=[1, 2],
                deny_tags=[3],
                allow_author_ids=[4],
                deny_author_ids=[2**64 - 1],
                no_repeats=True,
                beam_width=7,
                time_ms=START_MS,
            )
            before_ms = time.time() * 1_000
            await recommend(address, user_id="ann")
    query, plain = recorder.queries
    assert query.time_ms == START_MS
    assert plain.time_ms is not None
    assert before_ms - 1 <= plain.time_ms <= time.time() * 1_000
    chosen = query.filter
    assert (chosen.exclude, chosen.allow_tags, chosen.deny_tags) == ({2**64 - 1}, {1, 2}, {3})
    assert (chosen.allow_authors, chosen.deny_authors) == ({4}, {2**64 - 1})
    assert (query.k, query.beam_width, query.repeats) == (10, 7, False)
    assert plain.filter.is_open
    assert plain.repeats


async def test_pages_do_not_overlap_even_when_the_state_changes_between_them() -> None:
    owner = FakeOwner()
    owner.add("ann", 10)
    async with owner.serving() as state, StateClient(state, 5.0) as users:
        async with recommending(users) as address:
            pages: list[list[int]] = []
            token = ""
            while not pages or token:
                page = await recommend(address, user_id="ann", k=4, page_token=token)
                pages.append(ids(page))
                token = page.next_page_token
                owner.add("ann", 1)  # the newest item comes first: it moves everything
    shown = [item for page in pages for item in page]
    assert pages[0] == [10, 9, 8, 7]
    assert pages[1] == [11, 6, 5, 4]
    assert len(shown) == len(set(shown))


async def test_pages_of_popular_items_go_on_where_the_state_came_back() -> None:
    owner = FakeOwner()
    owner.add("ann", 3)
    owner.assigned.clear()
    async with owner.serving() as state, StateClient(state, 5.0) as users:
        async with recommending(users) as address:
            first = await recommend(address, user_id="ann", k=2)
            second = await recommend(address, user_id="ann", k=2, page_token=first.next_page_token)
            owner.assigned.update(range(3))
            third = await recommend(address, user_id="ann", k=2, page_token=second.next_page_token)
    assert [ids(page) for page in (first, second, third)] == [[900, 901], [902, 903], [3, 2]]
    assert {entry.source for entry in first.items} == {wire.SOURCE_POPULAR}
    assert {entry.source for entry in third.items} == {wire.SOURCE_PERSONAL}


@pytest.mark.parametrize("k", [100, 500])
async def test_the_page_that_reaches_the_limit_is_the_last(k: int) -> None:
    class Endless(FakeRecommender):
        def popular(self, query: Query) -> Sequence[Recommended]:
            return self._answer(range(100_000), query)

    token, pages = "", 0
    async with StateClient(NOBODY, 0.3) as users, recommending(users, Endless()) as address:
        while token or not pages:
            token = (await recommend(address, user_id="a", k=k, page_token=token)).next_page_token
            pages += 1
    assert pages == MAX_SHOWN // k


async def test_explanations_come_when_asked_for() -> None:
    owner = FakeOwner()
    owner.add("ann", 20)
    async with owner.serving() as state, StateClient(state, 5.0) as users:
        async with recommending(users) as address:
            plain = await recommend(address, user_id="ann", k=2)
            explained = await recommend(address, user_id="ann", k=2, explain=True)
            popular = await recommend(address, user_id="nobody", k=2, explain=True)
    assert not any(entry.HasField("reason") for entry in (*plain.items, *popular.items))
    for entry in explained.items:
        shares = entry.reason.shares
        assert (shares.recent, shares.mid_term, shares.lifecycle, shares.repeats) == (
            0.5,
            0.25,
            0.0,
            0.25,
        )
        (attended,) = entry.reason.attended
        assert (attended.item.item_id, attended.event_time_ms) == (7, START_MS)
    assert "explain" in explained.timings_ms
    assert "explain" not in plain.timings_ms


async def test_the_answer_says_when_and_how_long() -> None:
    owner = FakeOwner()
    owner.add("ann", 20)
    async with owner.serving() as state, StateClient(state, 5.0) as users:
        async with recommending(users) as address:
            reply = await recommend(address, user_id="ann")
            nobody = await recommend(address, user_id="nobody")
    age_ms = time.time_ns() // 1_000_000 - reply.freshness.newest_event_time_ms
    assert age_ms - 60_000 < reply.freshness.age_ms <= age_ms
    assert nobody.freshness.age_ms == 0
    assert {"read", "wait", "encode", "search", "total"} <= set(reply.timings_ms)
    stages = [reply.timings_ms[stage] for stage in ("read", "wait", "encode", "search")]
    assert 0 < sum(stages) <= reply.timings_ms["total"]


async def test_request_ids_are_echoed_or_made() -> None:
    async with StateClient(NOBODY, 0.3) as users, recommending(users) as address:
        given = await recommend(address, user_id="ann", request_id="r-1")
        made = [(await recommend(address, user_id="ann")).request_id for _ in range(2)]
        async with grpc.aio.insecure_channel(address) as channel:
            stub = recommender_pb2_grpc.RecommenderServiceStub(channel)
            request = wire.RecommendRequest(user_id="ann", request_id="r-2", k=501)
            call = stub.Recommend(request)
            with pytest.raises(grpc.aio.AioRpcError):
                await call
            trailing = dict(await call.trailing_metadata())
    assert given.request_id == "r-1"
    assert len(set(made)) == 2
    assert trailing["x-request-id"] == "r-2"


async def test_a_request_is_logged_with_what_it_came_with(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "services.request_log")
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    fields: dict[str, Any] = {
        "user_id": "a\nb",
        "k": 2,
        "surface": "home",
        "context": {"device": "tv\x1b"},
        "request_id": "r-1",
    }
    async with StateClient(NOBODY, 0.3) as users:
        async with recommending(users, log_requests=True) as address:
            async with grpc.aio.insecure_channel(address) as channel:
                stub = recommender_pb2_grpc.RecommenderServiceStub(channel)
                await stub.Recommend(
                    wire.RecommendRequest(**fields), metadata=(("traceparent", trace),)
                )
            await recommend_batch(address, [wire.RecommendRequest(**fields)])
        async with recommending(users) as address:
            await recommend(address, **fields)
    lines = [
        record.getMessage() for record in caplog.records if record.name == "services.request_log"
    ]
    assert len(lines) == 2
    line, of_batch = map(json.loads, lines)
    assert "\n" not in lines[0]
    assert (line["request_id"], line["surface"], line["user_id"]) == ("r-1", "home", "a\nb")
    assert line["context"] == {"device": "tv\x1b"}
    assert line["item_ids"] == [900, 901]
    assert line["degraded"] == ["DEGRADATION_STATE_UNAVAILABLE"]
    assert line["traceparent"] == trace
    assert of_batch["request_id"] == "r-1"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"exclude_item_ids": range(10_001)}, "exclude_item_ids has 10001 entries; at most 10000"),
        ({"allow_tags": range(1_001)}, "allow_tags has 1001 entries"),
        ({"deny_tags": range(1_001)}, "deny_tags has"),
        ({"allow_author_ids": range(1_001)}, "allow_author_ids has"),
        ({"deny_author_ids": range(1_001)}, "deny_author_ids has"),
        ({"surface": "s" * 65}, "surface has 65 bytes; at most 64"),
        ({"context": {str(i): "" for i in range(17)}}, "context has 17 entries; at most 16"),
        ({"context": {"k" * 65: ""}}, "a key of context has 65 bytes"),
        ({"context": {"key": "v" * 257}}, "context['key'] has 257 bytes; at most 256"),
        ({"request_id": "r" * 129}, "and has 129 characters"),
        ({"request_id": "a\nb"}, "request_id is 'a\\nb' and has 3 characters"),
        ({"page_token": "nonsense"}, "page_token"),
        ({"time_ms": 1_700_000_000}, "time_ms is 1700000000; milliseconds from 2000-01-01"),
    ],
)
async def test_limits_are_named(fields: dict[str, Any], text: str) -> None:
    async with StateClient(NOBODY, 0.3) as users, recommending(users) as address:
        error = await refusal(address, **{"user_id": "ann", **fields})
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert text in (error.details() or "")


async def test_overload_tells_when_to_ask_again() -> None:
    owner = FakeOwner()
    owner.add("ann", 2)
    async with owner.serving() as state, StateClient(state, 5.0) as users:
        async with recommending(users, Failing(Overloaded(0.25))) as address:
            error = await refusal(address, user_id="ann", request_id="r-9")
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    trailing = dict(error.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailing["grpc-status-details-bin"])
    assert retry_after_ms(status) == 250
    assert trailing["x-request-id"] == "r-9"


async def test_a_callers_time_that_ran_out_is_said() -> None:
    owner = FakeOwner()
    owner.add("ann", 2)
    async with owner.serving() as state, StateClient(state, 5.0) as users:
        async with recommending(users, Failing(DeadlineExceeded("not in time"))) as address:
            error = await refusal(address, user_id="ann")
    assert (error.code(), error.details()) == (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "not in time",
    )


async def test_what_the_user_has_seen_stays_out() -> None:
    """20 interactions: 6 in the lifecycle segment, 14 in the state."""
    owner = FakeOwner()
    owner.add("ann", 20)

    class Everything(FakeRecommender):
        def recommend(self, state: UserState, query: Query) -> Sequence[Recommended]:
            return self._answer(range(1, 30), query)

    async with owner.serving() as state, StateClient(state, 5.0) as users:
        async with recommending(users, Everything()) as address:
            plain = await recommend(address, user_id="ann", k=9)
            unseen = await recommend(address, user_id="ann", k=9, exclude_seen=True)
    assert ids(plain) == list(range(1, 10))
    assert ids(unseen) == list(range(21, 30))
    assert wire.DEGRADATION_SEEN_INCOMPLETE not in unseen.degraded


async def test_what_cannot_be_known_to_be_seen_is_said() -> None:
    owner = FakeOwner()
    owner.add("ann", 20)
    async with owner.serving() as state, StateClient(state, 5.0) as users:
        async with recommending(Blind(users)) as address:
            reply = await recommend(address, user_id="ann", exclude_seen=True)
            short = await recommend(address, user_id="nobody", exclude_seen=True)
    async with StateClient(NOBODY, 0.3) as users, recommending(users) as address:
        away = await recommend(address, user_id="ann", exclude_seen=True)
    assert wire.DEGRADATION_SEEN_INCOMPLETE in reply.degraded
    assert list(short.degraded) == []
    assert list(away.degraded) == [
        wire.DEGRADATION_STATE_UNAVAILABLE,
        wire.DEGRADATION_SEEN_INCOMPLETE,
    ]


class Blind:
    """Reads states, but not what was seen before them."""

    def __init__(self, users: StateClient) -> None:
        self._users = users

    async def read_delta(
        self,
        user_id: str,
        bundle_version: str,
        known: Known | None,
        timeout_s: float | None = None,
    ) -> UserDelta | None:
        return await self._users.read_delta(user_id, bundle_version, known, timeout_s)

    async def read_seen(
        self, user_id: str, known: object = None, timeout_s: float | None = None
    ) -> None:
        raise Unreachable("away")
