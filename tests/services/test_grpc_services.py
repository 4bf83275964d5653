"""The gRPC services as their callers use them: over a real channel."""

from typing import Any, NoReturn

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from model.query import Query
from protos import (
    admin_pb2,
    admin_pb2_grpc,
    recommender_pb2 as wire,
    recommender_pb2_grpc,
    state_pb2,
)
from protos.state_pb2_grpc import StateServiceStub
from services.clients import StateClient
from services.errors import CannotListen, NotFound, Unreachable
from services.grpc_server import GrpcServer
from state.user_delta import apply_delta
from state.user_state import UserState
from stream.topics import partition_of
from tests.services.nodes import (
    NUM_PARTITIONS,
    FakeOwner,
    FakeRecommender,
    SumCompressor,
    recommending,
)
from tests.state.builders import make_rows


async def recommend(address: str, **fields: object) -> wire.RecommendResponse:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = recommender_pb2_grpc.RecommenderServiceStub(channel)
        request = wire.RecommendRequest(**fields)  # type: ignore[arg-type]
        return await stub.Recommend(request, timeout=10)


async def test_recommend_says_what_it_was_made_from() -> None:
    owner = FakeOwner()
    owner.add("ann", 20)
    async with owner.serving() as state_address, StateClient(state_address, 5.0) as users:
        summary = SumCompressor().roll(None, [make_rows([1, 2, 3])], 3, 1)
        assert await users.put_summary("ann", summary, 0, 0) == (True, False)
        async with recommending(users) as address:
            reply = await recommend(address, user_id="ann", k=3, exclude_item_ids=[19])
    assert [entry.item.item_id for entry in reply.items] == [20, 18, 17]
    assert list(reply.items[0].sid) == [1, 2, 3]
    assert reply.source == wire.SOURCE_PERSONAL
    assert (reply.state_version, reply.bundle_version) == (20, "v1")
    assert (reply.segments.recent, reply.segments.mid_term) == (4, 10)
    assert reply.freshness.summary_lag == 3
    assert list(reply.degraded) == [wire.DEGRADATION_SUMMARY_BEHIND]


async def test_unknown_user_gets_popular_items_marked_so() -> None:
    async with FakeOwner().serving() as state_address, StateClient(state_address, 5.0) as users:
        async with recommending(users) as address:
            reply = await recommend(address, user_id="nobody", exclude_item_ids=[900])
    assert reply.source == wire.SOURCE_POPULAR
    assert [entry.item.item_id for entry in reply.items] == list(range(901, 911))
    assert list(reply.degraded) == []


async def test_a_state_node_that_is_away_gives_popular_items_and_says_so() -> None:
    async with StateClient("127.0.0.1:1", 0.3) as users, recommending(users) as address:
        reply = await recommend(address, user_id="ann")
    assert reply.source == wire.SOURCE_POPULAR
    assert list(reply.degraded) == [wire.DEGRADATION_STATE_UNAVAILABLE]


async def test_a_bundle_without_a_summary_owes_one() -> None:
    owner = FakeOwner()
    owner.add("ann", 20)
    store = owner.store_of("ann")
    summary = SumCompressor().roll(None, [make_rows(list(range(6)))], 6, 1)
    store.put_summary("ann", summary, 0, 0)
    assert store.dirty_marks() == []
    async with owner.serving() as address, StateClient(address, 5.0) as users:
        await users.read_user("ann", "v1")
        assert owner.wakes == 0
        await users.read_user("ann", "v2")
        await users.read_user("ann", "v2")
    assert owner.wakes == 1
    assert [mark.user_id for mark in store.dirty_marks()] == ["ann"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"user_id": ""}, "user_id has 0 bytes"),
        ({"user_id": "x" * 300}, "user_id has 300 bytes"),
        ({"user_id": "ann", "k": 501}, "k is 501"),
        ({"user_id": "ann", "beam_width": 1_001}, "beam_width is 1001"),
    ],
)
async def test_bad_requests_name_the_field_and_the_limit(
    fields: dict[str, object], text: str
) -> None:
    async with StateClient("127.0.0.1:1", 0.3) as users, recommending(users) as address:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await recommend(address, **fields)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert text in (caught.value.details() or "")


async def test_our_own_faults_reach_callers_without_their_text() -> None:
    class Broken(FakeRecommender):
        def popular(self, query: Query) -> NoReturn:
            raise RuntimeError("secret detail")

    async with StateClient("127.0.0.1:1", 0.3) as users, recommending(users, Broken()) as address:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await recommend(address, user_id="ann")
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in (caught.value.details() or "")


async def test_state_is_read_whole() -> None:
    owner = FakeOwner()
    owner.add("ann", 20)
    async with owner.serving() as address, StateClient(address, 5.0) as users:
        state = await users.read_user("ann", "v1")
        assert isinstance(state, UserState)
        assert state.rows["item_id"].tolist() == list(range(7, 21))
        assert await users.read_user("nobody", "v1") is None
        with pytest.raises(NotFound):
            await users.read_rolled("nobody", "v1", 1)


async def test_deltas_bring_what_changed_and_no_accumulators() -> None:
    owner = FakeOwner()
    owner.add("ann", 20)
    async with owner.serving() as address, StateClient(address, 5.0) as users:
        first = await users.read_delta("ann", "v1", None)
        assert first is not None
        copy = apply_delta(None, first)
        summary = SumCompressor().roll(None, [make_rows(list(range(6)))], 6, 1)
        await users.put_summary("ann", summary, 0, 0)
        with_summary = await users.read_delta("ann", "v1", copy.known)
        assert with_summary is not None
        assert with_summary.history_unchanged
        assert with_summary.summary is not None
        assert with_summary.summary.accumulators == b""
        copy = apply_delta(copy, with_summary)
        same = await users.read_delta("ann", "v1", copy.known)
        assert same is not None
        assert same.unchanged
        assert apply_delta(copy, same) == copy
        owner.add("ann", 4)
        newer = await users.read_delta("ann", "v1", copy.known)
        assert newer is not None
        assert list(newer.chunks) == [15]
        copy = apply_delta(copy, newer)
        whole = await users.read_user("ann", "v1")
        assert whole is not None
        assert copy.state.meta == whole.meta
        assert copy.state.rows.tobytes() == whole.rows.tobytes()
        assert await users.read_delta("nobody", "v1", None) is None


async def test_a_reader_that_has_a_summary_asks_for_no_other() -> None:
    owner = FakeOwner()
    owner.add("ann", 20)
    async with owner.serving() as address, StateClient(address, 5.0) as users:
        await users.put_summary(
            "ann", SumCompressor().roll(None, [make_rows(list(range(6)))], 6, 1), 0, 0
        )
        first = await users.read_delta("ann", "v1", None)
        assert first is not None
        await users.read_delta("ann", "v1", apply_delta(None, first).known)
    assert owner.wakes == 0


async def test_seen_items_come_whole_and_then_what_is_new() -> None:
    owner = FakeOwner()
    owner.add("ann", 20)
    async with owner.serving() as address, StateClient(address, 5.0) as users:
        first = await users.read_seen("ann")
        assert first is not None
        assert first.item_ids.tolist() == [1, 2, 3, 4, 5, 6]
        owner.add("ann", 3)
        more = await users.read_seen("ann", first.known)
        assert more is not None
        assert (more.start, more.end, more.item_ids.tolist()) == (6, 9, [7, 8, 9])
        assert await users.read_seen("nobody") is None


async def test_users_of_partitions_owned_elsewhere_are_not_served() -> None:
    owner = FakeOwner()
    owner.add("ann", 5)
    owner.assigned.clear()
    async with owner.serving() as address, StateClient(address, 5.0) as users:
        with pytest.raises(Unreachable, match="not served by this node"):
            await users.read_user("ann", "v1")


@pytest.mark.parametrize(
    "fields",
    [
        {"bundle_version": ""},
        {"boundary": 4},
        {"count": 0},
        {"count": 4},
        {"tokens": b""},
        {"accumulators": b""},
        {"num_tokens": 3},
        {"accumulators": b"x" * (5 << 20)},
    ],
)
async def test_put_summary_refuses_what_cannot_be_one(fields: dict[str, Any]) -> None:
    good: dict[str, Any] = {
        "bundle_version": "v1",
        "boundary": 3,
        "count": 3,
        "accumulators": b"z",
        "num_tokens": 1,
        "tokens": b"1234",
    }
    async with FakeOwner().serving() as address, grpc.aio.insecure_channel(address) as channel:
        summary = state_pb2.Summary(**{**good, **fields})
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await StateServiceStub(channel).PutSummary(
                state_pb2.PutSummaryRequest(user_id="ann", summary=summary)
            )
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_admin_describes_users_and_store() -> None:
    owner = FakeOwner()
    owner.add("ann", 20)
    async with owner.serving() as address, grpc.aio.insecure_channel(address) as channel:
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        user = await admin.DescribeUser(admin_pb2.DescribeUserRequest(user_id="ann", newest=2))
        store = await admin.DescribeStore(admin_pb2.DescribeStoreRequest())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await admin.DescribeUser(admin_pb2.DescribeUserRequest(user_id="nobody"))
    assert (user.recent, user.mid_term, user.lifecycle) == (4, 10, 6)
    assert user.dirty
    assert user.owned
    assert user.stored_bytes > 0
    assert [event.item_id for event in user.newest] == [20, 19]
    assert list(user.newest[0].kinds) == [1]
    assert sum(partition.users for partition in store.partitions) == 1
    assert store.counters["late"] == 2
    assert store.dirty_users == 1
    assert (store.resting_users, store.oldest_dirty_s) == (1, 2.5)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_deleted_user_is_unknown() -> None:
    owner = FakeOwner()
    owner.add("ann", 20)
    async with owner.serving() as address, grpc.aio.insecure_channel(address) as channel:
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        await admin.DeleteUser(admin_pb2.DeleteUserRequest(user_id="ann"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await admin.DescribeUser(admin_pb2.DescribeUserRequest(user_id="ann"))
        store = await admin.DescribeStore(admin_pb2.DescribeStoreRequest())
    assert owner.deleted == ["ann"]
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert sum(partition.users for partition in store.partitions) == 0


async def test_a_forgotten_item_leaves_the_state() -> None:
    owner = FakeOwner()
    owner.add("ann", 20)
    async with owner.serving() as address, StateClient(address, 5.0) as users:
        assert await forget(address, "ann", 19) == (20, True)
        state = await users.read_user("ann", "v1")
    assert state is not None
    assert state.rows["item_id"].tolist() == [*range(7, 19), 20]
    assert (state.meta.length, state.meta.epoch) == (19, 1)


async def test_a_request_that_is_not_applied_yet_says_so() -> None:
    owner = FakeOwner(stuck_at=20)
    owner.add("ann", 20)
    async with owner.serving() as address:
        assert await forget(address, "ann", 19, wait_ms=100) == (20, False)
        owner.stores.close(partition_of("ann", NUM_PARTITIONS))  # given to another node
        assert await forget(address, "ann", 19, wait_ms=100) == (20, False)


@pytest.mark.parametrize(
    ("user", "item", "text"), [("", 1, "user_id has 0"), ("ann", 0, "item_id is 0")]
)
async def test_a_request_names_a_user_and_an_item(user: str, item: int, text: str) -> None:
    async with FakeOwner().serving() as address:
        with pytest.raises(grpc.aio.AioRpcError, match=text) as caught:
            await forget(address, user, item)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def forget(address: str, user: str, item: int, wait_ms: int = 10_000) -> tuple[int, bool]:
    """Offset of the request, and whether it was applied."""
    async with grpc.aio.insecure_channel(address) as channel:
        reply = await admin_pb2_grpc.AdminServiceStub(channel).DeleteInteractions(
            admin_pb2.DeleteInteractionsRequest(user_id=user, item_id=item, wait_ms=wait_ms)
        )
    return reply.offset, reply.applied


async def test_health_and_reflection_answer() -> None:
    async with FakeOwner().serving() as address, grpc.aio.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "gemstream.v1.StateService"):
            reply = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = reflect.ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        listed = await call.read()
        names = {service.name for service in listed.list_services_response.service}
        assert "gemstream.v1.AdminService" in names


async def test_a_taken_address_is_refused() -> None:
    async with FakeOwner().serving() as address:
        with pytest.raises(CannotListen, match=address):
            await GrpcServer(address, []).start()
