"""UserStore.read_user in the process that ingests: while it rests, and while it runs at full speed."""

import asyncio
import threading
import time
from collections import defaultdict
from typing import Any

import numpy as np

from bench.ingest.job import Job
from bench.ingest.node import Node, wait_for_word
from bench.ingest.quantiles import quantiles_ms
from state.partition_stores import PartitionStores
from state.summary import Summary
from stream.topics import partition_of

BUNDLE = "bench"
READERS = {"reader-100000": 100_000, "reader-300": 300}
"""Users that are read, with the length of their histories."""
PAUSE_S = 0.002
"""Between two reads: a reader, not a flood."""
IDLE_READS = 400
_ACCUMULATOR_BYTES, _TOKENS, _WIDTH = 2 * 4 * 64 * 64 * 8, 16, 256
"""Of a network 256 wide: two lifecycle layers of four heads, 16 tokens."""


def realistic_summary(boundary: int) -> Summary:
    """Random, so that nothing gets smaller by compression."""
    random = np.random.default_rng(0)
    return Summary(
        bundle_version=BUNDLE,
        boundary=boundary,
        count=boundary,
        accumulators=random.bytes(_ACCUMULATOR_BYTES),
        tokens=random.normal(size=(_TOKENS, _WIDTH)).astype(np.float32),
        built_at_ms=0,
    )


class Reader:
    """Reads the users in turn, from a thread of its own."""

    def __init__(self, stores: PartitionStores, num_partitions: int) -> None:
        """Nothing is read yet."""
        self._stores, self._num_partitions = stores, num_partitions
        self._stopping = threading.Event()

    def put_summaries(self) -> None:
        """Give every user with a lifecycle segment a summary of it."""
        for user in READERS:
            store = self._stores.get(partition_of(user, self._num_partitions))
            stored = store.read_user(user, BUNDLE)
            if stored is not None and stored.meta.lifecycle_boundary:
                summary = realistic_summary(stored.meta.lifecycle_boundary)
                store.put_summary(user, summary, 0, stored.meta.epoch)

    def stop(self) -> None:
        """Let `read` return."""
        self._stopping.set()

    def read(self, max_rounds: int) -> dict[str, dict[str, float]]:
        """Read each user up to `max_rounds` times; milliseconds by user.

        `USER from due` begins when the thread should have woken up: it then waits for the interpreter lock.
        """
        taken_ms: dict[str, list[float]] = defaultdict(list)
        due = time.perf_counter()
        for _ in range(max_rounds):
            for user in READERS:
                store = self._stores.get(partition_of(user, self._num_partitions))
                start = time.perf_counter()
                store.read_user(user, BUNDLE)
                end = time.perf_counter()
                taken_ms[user].append(1_000 * (end - start))
                taken_ms[f"{user} from due"].append(1_000 * (end - due))
                due = end + PAUSE_S
                if self._stopping.wait(PAUSE_S):
                    return _summed(taken_ms)
        return _summed(taken_ms)


def _summed(taken_ms: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    return {user: quantiles_ms(values) for user, values in taken_ms.items()}


async def _ingest(job: Job) -> dict[str, Any]:
    async with Node(job) as node:
        await node.ingest_until(lambda: node.applied() >= job.num_first)
        reader = Reader(node.stores, job.topics.num_partitions)
        reader.put_summaries()
        idle = await asyncio.to_thread(reader.read, IDLE_READS)
        await wait_for_word(job, "idle")
        reading = asyncio.create_task(asyncio.to_thread(reader.read, 1 << 30))
        outcome = await node.ingest_until(lambda: node.applied() >= job.num_events)
        reader.stop()
        busy = await reading
    return {**outcome, "idle": idle, "busy": busy}


def gemstream(job: Job) -> dict[str, Any]:
    """Ours, with a reader beside it."""
    return asyncio.run(_ingest(job))
