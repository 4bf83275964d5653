"""A state node that hears and never answers: callers get what is known, in their time, and nobody waits for it twice."""

import asyncio
import contextlib
import time

import grpc.aio
import pytest

from protos import recommender_pb2 as wire, recommender_pb2_grpc
from services.circuit_breaker import CircuitBreaker
from services.clients import RoutedStateClient, StateClient
from services.errors import NotFound, TimedOut, Unreachable
from tests.services.nodes import NUM_PARTITIONS, FakeOwner, recommending


async def recommend(address: str, user_id: str, timeout_s: float) -> wire.RecommendResponse:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = recommender_pb2_grpc.RecommenderServiceStub(channel)
        return await stub.Recommend(wire.RecommendRequest(user_id=user_id), timeout=timeout_s)


@pytest.mark.parametrize("routed", [False, True])
async def test_callers_get_an_older_copy_or_the_fallback_in_their_own_time(routed: bool) -> None:
    owner = FakeOwner()
    owner.add("ann", 5)

    async def find_owner(partition: int, timeout_s: float) -> str | None:
        return state

    async with owner.serving() as state:
        one = StateClient(state, 60.0)
        many = RoutedStateClient(find_owner, NUM_PARTITIONS, 60.0)
        async with one, many, recommending(many if routed else one) as address:
            await recommend(address, "ann", 10)
            owner.is_frozen, owner.reads = True, 0
            first = await recommend(address, "ann", 2)
            started_s = time.monotonic()
            again = [await recommend(address, user, 2) for user in ("ann", "bob", "ann", "eve")]
            spent_s = time.monotonic() - started_s
            reads = owner.reads
            owner.is_frozen = False
            async with asyncio.timeout(10):
                while (await recommend(address, "ann", 2)).degraded:
                    await asyncio.sleep(0.05)  # between two looks
    stale, away = wire.DEGRADATION_STATE_STALE, wire.DEGRADATION_STATE_UNAVAILABLE
    assert list(first.degraded) == [stale]
    assert [list(reply.degraded) for reply in again] == [[stale], [away], [stale], [away]]
    assert reads <= 2  # of five
    assert spent_s < 3  # of four seconds, had they all waited


async def timed_out(breaker: CircuitBreaker, after_s: float) -> None:
    with contextlib.suppress(TimedOut), breaker.call():
        await asyncio.sleep(after_s)
        raise TimedOut("nothing came")


async def test_one_call_in_a_while_sees_whether_the_server_is_back() -> None:
    breaker = CircuitBreaker("owner:1", retry_after_s=0.2)
    await timed_out(breaker, 0.11)
    with pytest.raises(Unreachable, match="owner:1 has just said nothing"):
        with breaker.call():
            pytest.fail("it was called")
    await asyncio.sleep(0.21)  # the time is what is tested
    trial = asyncio.create_task(timed_out(breaker, 0.11))
    await asyncio.sleep(0)
    with pytest.raises(Unreachable), breaker.call():
        pytest.fail("a second one was called")
    await trial
    with pytest.raises(Unreachable), breaker.call():
        pytest.fail("it was called though the trial failed")
    await asyncio.sleep(0.21)
    with pytest.raises(NotFound), breaker.call():
        raise NotFound("an answer all the same")
    with breaker.call():
        pass


async def test_a_hasty_caller_and_a_slow_answer_close_nobody_out() -> None:
    breaker = CircuitBreaker("owner:1")
    await timed_out(breaker, 0.0)
    slow = asyncio.create_task(timed_out(breaker, 0.11))
    await asyncio.sleep(0.01)
    with breaker.call():
        pass  # another one is answered meanwhile
    await slow
    with breaker.call():
        pass


async def test_a_trial_that_is_given_up_leaves_the_next_one_to_see() -> None:
    breaker = CircuitBreaker("owner:1", retry_after_s=0.0)
    await timed_out(breaker, 0.11)
    with pytest.raises(asyncio.CancelledError), breaker.call():
        raise asyncio.CancelledError
    with breaker.call():
        pass
