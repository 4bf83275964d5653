"""Requests share batches, bounded queues refuse, and work that nobody waits for stops."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import pytest_asyncio

from services.batcher import Batcher, BatchingConfig, Ticket
from services.errors import DeadlineExceeded, Overloaded
from state.errors import ConfigError


class Network:
    """Answers with the double, when it is let; notes the batches."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.begun = threading.Event()
        self.batches: list[list[int]] = []
        self.stopped = threading.Event()

    def work(
        self, batch: Sequence[Ticket[int, int]], check: Callable[[], None]
    ) -> list[int | Exception]:
        self.batches.append([ticket.job for ticket in batch])
        self.begun.set()
        while not self.open.wait(0.005):
            try:
                check()
            except Exception:
                self.stopped.set()
                raise
        if any(ticket.job == 13 for ticket in batch):
            raise ValueError("13 breaks its batch")
        return [KeyError(ticket.job) if ticket.job < 0 else 2 * ticket.job for ticket in batch]


@pytest.fixture
def network() -> Network:
    return Network()


@pytest_asyncio.fixture
async def batcher(network: Network) -> AsyncIterator[Batcher[int, int]]:
    with ThreadPoolExecutor(1) as executor:
        batcher = Batcher(network.work, executor, BatchingConfig(max_batch=4, max_pending=6))
        running = asyncio.create_task(batcher.run())
        yield batcher
        network.open.set()
        running.cancel()


async def held(
    batcher: Batcher[int, int], network: Network, jobs: Sequence[int]
) -> list[asyncio.Task[int]]:
    """The first job is in hand and held up, the others wait."""
    network.open.clear()
    tasks = [asyncio.create_task(batcher.submit(jobs[0]))]
    await asyncio.to_thread(network.begun.wait, 10)
    tasks += [asyncio.create_task(batcher.submit(job)) for job in jobs[1:]]
    await asyncio.sleep(0)
    return tasks


async def test_what_waits_goes_together(batcher: Batcher[int, int], network: Network) -> None:
    tasks = await held(batcher, network, [1, 2, 3, 4, 5, 6, 7])
    network.open.set()
    assert await asyncio.gather(*tasks) == [2, 4, 6, 8, 10, 12, 14]
    assert network.batches == [[1], [2, 3, 4, 5], [6, 7]]
    assert batcher.counters["jobs"] == 7
    assert batcher.counters["batches"] == 3
    assert batcher.num_pending == 0


async def refused_for(batcher: Batcher[int, int]) -> float:
    with pytest.raises(Overloaded) as refused:
        await batcher.submit(9)
    return refused.value.retry_after_s


async def test_a_full_queue_refuses_and_says_when(
    batcher: Batcher[int, int], network: Network
) -> None:
    tasks = await held(batcher, network, range(1, 8))
    with pytest.raises(Overloaded) as refused:
        await batcher.submit(9)
    assert "6 requests wait, which is the limit (max_pending in [inference_node.batching])" in str(
        refused.value
    )
    assert batcher.counters["shed"] == 1
    delays_s = [await refused_for(batcher) for _ in range(50)]
    assert len(set(delays_s)) > 10  # they do not come back together
    assert 0.5 <= min(delays_s) / (7 * 0.01) < 0.8
    assert 1.2 < max(delays_s) / (7 * 0.01) <= 1.5
    tasks[1].cancel()
    await asyncio.gather(tasks[1], return_exceptions=True)
    tasks.append(asyncio.create_task(batcher.submit(10)))  # what was given up makes room
    await asyncio.sleep(0)
    network.open.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert answers[-1] == 20
    assert isinstance(answers[1], asyncio.CancelledError)
    assert not any(2 in batch for batch in network.batches)


async def test_time_that_runs_out_ends_the_wait_and_the_work(
    batcher: Batcher[int, int], network: Network
) -> None:
    network.open.clear()
    with pytest.raises(DeadlineExceeded):
        await batcher.submit(1, time.monotonic() + 0.05)
    assert await asyncio.to_thread(network.stopped.wait, 10)
    network.open.set()
    assert await batcher.submit(2) == 4
    assert batcher.counters["expired"] == 1


async def test_a_batch_goes_on_for_those_who_still_wait(
    batcher: Batcher[int, int], network: Network
) -> None:
    tasks = await held(batcher, network, [1, 2, 3])
    network.begun.clear()
    tasks[0].cancel()
    assert await asyncio.to_thread(network.stopped.wait, 10)
    await asyncio.to_thread(network.begun.wait, 10)
    tasks[1].cancel()
    network.open.set()
    assert await tasks[2] == 6
    assert network.batches == [[1], [2, 3]]
    assert batcher.counters["cancelled"] == 2


async def test_one_that_fails_fails_alone(batcher: Batcher[int, int], network: Network) -> None:
    tasks = await held(batcher, network, [1, -2, 13, 4])
    network.open.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [answers[0], answers[3]] == [2, 8]
    assert isinstance(answers[1], KeyError)
    assert isinstance(answers[2], ValueError)


def test_sizes_are_checked() -> None:
    with pytest.raises(ConfigError, match="max_batch is 0"):
        BatchingConfig(max_batch=0)
