"""A user whose stored bytes are damaged, as callers and operators meet him: DATA_LOSS, never a fault of ours."""

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from protos import admin_pb2, admin_pb2_grpc, recommender_pb2 as wire, state_pb2
from protos.state_pb2_grpc import StateServiceStub
from services.backfill_job import Made, _compressed
from services.clients import StateClient
from services.errors import DataLoss
from state import keys
from state.key_value_store import Batch, Family, MemoryStore
from tests.services.calls import call
from tests.services.nodes import FakeOwner, SumCompressor, recommending
from tests.services.test_grpc_services import recommend
from tests.state.builders import SMALL


def owner_of_ann(damaged: bytes = keys.HEAD) -> FakeOwner:
    owner = FakeOwner()
    owner.add("ann", 20)
    owner.add("bob", 20)
    database = owner.store_of("ann").database
    prefix = keys.user_prefix(b"ann") + damaged
    key, value = next(database.scan(Family.USERS, prefix, keys.after(prefix)))
    batch = Batch()
    batch.put(Family.USERS, key, value[:-1] + bytes([value[-1] ^ 1]))
    database.write(batch)
    return owner


async def code_of(address: str, method: str, request: object) -> tuple[grpc.StatusCode, str]:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = StateServiceStub(channel)
        if hasattr(admin_pb2, f"{method}Request"):
            stub = admin_pb2_grpc.AdminServiceStub(channel)  # type: ignore[assignment]
        with pytest.raises(grpc.aio.AioRpcError) as told:
            await getattr(stub, method)(request, timeout=10)
    return told.value.code(), str(told.value.details())


async def test_every_call_about_him_answers_data_loss_and_nobody_tries_him_again() -> None:
    owner = owner_of_ann()
    requests = {
        "GetUserState": state_pb2.GetUserStateRequest(user_id="ann"),
        "GetSeenItems": state_pb2.GetSeenItemsRequest(user_id="ann"),
        "GetRolled": state_pb2.GetRolledRequest(user_id="ann", bundle_version="v1"),
        "DescribeUser": admin_pb2.DescribeUserRequest(user_id="ann"),
        "DeleteInteractions": admin_pb2.DeleteInteractionsRequest(user_id="ann", item_id=1),
    }
    async with owner.serving() as address, StateClient(address, 5.0) as users:
        for method, request in requests.items():
            code, text = await code_of(address, method, request)
            assert code is grpc.StatusCode.DATA_LOSS, method
            assert "user 'ann': head: " in text
            assert "docs/damage.md" in text
        await users.report_failure("ann", "v1", "DataLoss")
        assert owner.outcomes == ["ann completed"], "no further jobs"
        with pytest.raises(DataLoss):
            await users.read_delta("ann", "v1", None, None)
        assert await users.read_delta("bob", "v1", None, None) is not None


async def test_recommendations_are_popular_items_and_say_why() -> None:
    owner = owner_of_ann()
    async with (
        owner.serving() as state,
        StateClient(state, 5.0) as users,
        recommending(users) as at,
    ):
        reply = await recommend(at, user_id="ann", k=3)
    assert reply.source == wire.SOURCE_POPULAR
    assert list(reply.degraded) == [wire.DEGRADATION_STATE_UNAVAILABLE]


async def test_an_operator_sees_him_and_deletes_him() -> None:
    owner = owner_of_ann()
    async with owner.serving() as address:
        show = await asyncio.to_thread(call, "user", "show", "ann", "--state", address)
        stats = await asyncio.to_thread(call, "store", "stats", "--state", address)
        forget = await asyncio.to_thread(
            call, "user", "forget", "ann", "3", "--yes", "--state", address
        )
        done = await asyncio.to_thread(call, "user", "delete", "ann", "--yes", "--state", address)
        after = await asyncio.to_thread(call, "user", "show", "ann", "--state", address)
    assert show.code == forget.code == 1
    assert "user 'ann': head: a head fails its checksum; docs/damage.md" in show.stderr
    assert "quarantined users" in stats.stdout
    assert "ann" in stats.stdout
    assert (done.code, done.stdout.strip()) == (0, "user ann is deleted")
    assert after.code == 3


def test_a_recompression_leaves_him_out() -> None:
    owner = owner_of_ann(keys.CHUNK)
    database, users = MemoryStore(), owner.store_of("ann").database
    for family in Family:  # both users in one partition
        for store in (owner.store_of("bob").database, users):
            batch = Batch()
            for key, value in store.scan(family, b"", b"\xff"):
                batch.put(family, key, value)
            database.write(batch)
    batch = Batch()
    batch.delete(Family.SYSTEM, keys.FORMAT_KEY)
    database.write(batch)
    plan: Any = SimpleNamespace(settings=SimpleNamespace(history=SMALL))
    made = Made()
    compressed = dict(_compressed(database, plan, 0, SumCompressor(), made))
    assert {keys.split_user_key(key)[0] for key in compressed} == {b"bob"}
    assert (made.users, made.summaries) == (1, 1)
