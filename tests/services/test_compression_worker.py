"""The compression worker against a real StateService: incremental, bounded, harmless when stale."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from model.errors import SummaryError
from protos.compression_pb2 import CompressionJob
from services.clients import StateClient
from services.compression_worker import CompressionWorker
from state.interaction import Rows
from state.summary import Summary
from tests.services.nodes import FakeOwner, SumCompressor


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
    assert owner.summaries_for == ["ann"]


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


async def test_an_owner_that_is_away_is_survived() -> None:
    with ThreadPoolExecutor(1) as executor:
        worker = CompressionWorker(SumCompressor(), executor, 4, 64)
        await worker.compress([CompressionJob(user_id="ann", owner_address="127.0.0.1:1")])
        await worker.close()
    assert worker.counters["failed"] == 1


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
