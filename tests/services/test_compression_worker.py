"""The compression worker against a real StateService: incremental, bounded, harmless when stale."""

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from model.errors import SummaryError
from protos.compression_pb2 import CompressionJob
from services.clients import StateClient
from services.compression_worker import CompressionWorker
from state.interaction import Rows
from state.key_value_store import MemoryStore
from state.partition_stores import PartitionStores
from state.segments import HistoryConfig
from state.summary import Summary
from tests.services.nodes import FakeOwner, SumCompressor
from tests.state.builders import arrive, make_rows


def summary_of(owner: FakeOwner, user: str) -> Summary | None:
    stored = owner.store_of(user).read_user(user, "v1")
    return stored.summary if stored else None


async def compress(
    owner: FakeOwner, compressor: SumCompressor, *users: str, max_chunks: int = 64, times: int = 1
) -> CompressionWorker:
    async with owner.serving() as address:
        with ThreadPoolExecutor(1) as executor:
            worker = CompressionWorker(compressor, executor, 4, max_chunks)
            jobs = [CompressionJob(user_id=user, owner_address=address) for user in users]
            await asyncio.gather(*(worker.compress(jobs) for _ in range(times)))
            await worker.close()
    return worker


async def test_summaries_reach_the_boundary_and_clear_the_mark() -> None:
    owner = FakeOwner()
    owner.add("ann", 24)
    await compress(owner, SumCompressor(), "ann")
    summary = summary_of(owner, "ann")
    assert summary is not None
    assert (summary.boundary, summary.count) == (12, 12)
    assert int.from_bytes(summary.accumulators, "big") == sum(range(1, 13))
    assert owner.store_of("ann").dirty_marks() == []
    assert owner.outcomes == ["ann completed"]


async def test_rolling_in_one_chunk_reads_one_chunk() -> None:
    owner, compressor = FakeOwner(), SumCompressor()
    owner.add("ann", 24)
    await compress(owner, compressor, "ann")
    compressor.chunks_seen = 0
    owner.add("ann", 3)
    await compress(owner, compressor, "ann")
    assert compressor.chunks_seen == 1
    summary = summary_of(owner, "ann")
    assert summary is not None
    assert int.from_bytes(summary.accumulators, "big") == sum(range(1, 16))


async def test_long_ways_are_gone_in_steps() -> None:
    owner, compressor = FakeOwner(), SumCompressor()
    owner.add("ann", 24)
    worker = await compress(owner, compressor, "ann", max_chunks=1)
    assert worker.counters["stored"] == 4
    summary = summary_of(owner, "ann")
    assert summary is not None
    assert summary.boundary == 12


async def test_a_summary_forgets_an_item_as_if_it_had_never_been() -> None:
    owner, never = FakeOwner(), FakeOwner()
    owner.add("ann", 24)
    await compress(owner, SumCompressor(), "ann")
    await owner.forget("ann", 5)
    assert summary_of(owner, "ann") is None
    await compress(owner, SumCompressor(), "ann")
    never.add("ann", 24, without=5)
    await compress(never, SumCompressor(), "ann")
    summary, expected = summary_of(owner, "ann"), summary_of(never, "ann")
    assert summary is not None
    assert expected is not None
    assert (summary.boundary, summary.count) == (expected.boundary, expected.count) == (9, 9)
    assert summary.accumulators == expected.accumulators
    assert summary.tokens.tobytes() == expected.tokens.tobytes()
    assert owner.store_of("ann").dirty_marks() == []


async def test_doubled_jobs_and_strangers_do_no_harm() -> None:
    owner = FakeOwner()
    owner.add("ann", 24)
    owner.add("bob", 2)
    await compress(owner, SumCompressor(), "nobody", "ann", "bob", "ann", times=3)
    summary = summary_of(owner, "ann")
    assert summary is not None
    assert int.from_bytes(summary.accumulators, "big") == sum(range(1, 13))
    assert summary_of(owner, "bob") is None


class Picky(SumCompressor):
    """Cannot make sense of the bytes it is given back."""

    def roll(
        self, base: Summary | None, chunks: Sequence[Rows], end_boundary: int, now_ms: int
    ) -> Summary:
        if base is not None:
            raise SummaryError("accumulators of another layout")
        return super().roll(base, chunks, end_boundary, now_ms)


async def test_a_user_that_cannot_be_compressed_holds_up_nobody() -> None:
    owner = FakeOwner()
    owner.add("ann", 24)
    await compress(owner, SumCompressor(), "ann")
    owner.add("ann", 3)
    owner.add("bob", 24)
    worker = await compress(owner, Picky(), "ann", "bob")
    assert worker.counters["failed"] == 1
    assert summary_of(owner, "bob") is not None
    assert "ann failed: SummaryError: accumulators of another layout" in owner.outcomes


class OnFire(SumCompressor):
    """Has a fault that nobody foresaw, with users that begin with item 1."""

    def roll(
        self, base: Summary | None, chunks: Sequence[Rows], end_boundary: int, now_ms: int
    ) -> Summary:
        if chunks[0]["item_id"][0] == 1:
            raise RuntimeError("on fire")
        return super().roll(base, chunks, end_boundary, now_ms)


async def test_a_fault_of_ours_is_reported_and_holds_up_nobody() -> None:
    owner = FakeOwner()
    owner.add("ann", 24)
    owner.store_of("bob").apply(
        arrive(make_rows(list(range(24)), first_item=50), "bob", first_offset=24)
    )
    worker = await compress(owner, OnFire(), "ann", "bob")
    assert worker.counters["failed"] == 1
    assert "ann failed: RuntimeError: on fire" in owner.outcomes
    assert summary_of(owner, "bob") is not None
    assert len(owner.store_of("ann").dirty_marks()) == 1, "the mark stays"


async def test_steps_on_the_way_are_no_end() -> None:
    owner = FakeOwner()
    owner.add("ann", 24)
    await compress(owner, SumCompressor(), "ann", max_chunks=2)
    assert owner.outcomes == ["ann progressed", "ann completed"]
    await compress(owner, SumCompressor(), "ann")
    assert owner.outcomes[2:] == ["ann released"]


async def test_what_left_the_history_uncompressed_is_owed_no_more() -> None:
    short = HistoryConfig(recent_len=4, mid_term_len=12, chunk_len=3, max_history=15)
    owner = FakeOwner(stores=PartitionStores(lambda _: MemoryStore(), short))
    owner.add("ann", 16)  # the one chunk behind the boundary has left the history
    store = owner.store_of("ann")
    assert len(store.dirty_marks()) == 1
    await compress(owner, SumCompressor(), "ann")
    assert store.dirty_marks() == []


async def test_an_owner_that_is_away_is_survived() -> None:
    with ThreadPoolExecutor(1) as executor:
        worker = CompressionWorker(SumCompressor(), executor, 4, 64)
        await worker.compress([CompressionJob(user_id="ann", owner_address="127.0.0.1:1")])
        await worker.close()
    assert worker.counters["unreachable"] == 1


async def test_an_owner_that_says_nothing_is_waited_for_once() -> None:
    """It holds up a batch for the time of one call, not of one call per user."""
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts for it
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with ThreadPoolExecutor(1) as executor:
            worker = CompressionWorker(SumCompressor(), executor, 1, 64, call_timeout_s=0.5)
            jobs = [CompressionJob(user_id=f"{n}", owner_address=address) for n in range(20)]
            async with asyncio.timeout(5):
                await worker.compress(jobs)
            await worker.close()
    assert worker.counters["unreachable"] == 20


async def test_a_mark_of_a_bundle_nobody_has_is_taken_back() -> None:
    owner = FakeOwner()
    owner.add("ann", 24)
    await compress(owner, SumCompressor(), "ann")
    async with owner.serving() as address, StateClient(address, 5.0) as users:
        await users.read_user("ann", "unknown bundle")
        assert len(owner.store_of("ann").dirty_marks()) == 1
        await users.read_rolled("ann", "v1", 1)  # what a worker does with the job
        assert owner.store_of("ann").dirty_marks() == []
        await users.read_user("ann", "unknown bundle")
    assert owner.store_of("ann").dirty_marks() == []
