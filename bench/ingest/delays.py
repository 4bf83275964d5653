"""How long events wait between the broker's append and the durable state, by whose they are."""

import asyncio
import time
from collections import defaultdict
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.ingest.job import Job
from bench.ingest.node import Node, wait_for_word
from bench.ingest.quantiles import quantiles_ms
from bench.ingest.shares import APPEND, DECODE, FLUSH, WRITE, Clock, install
from stream.consumer import Poll
from stream.ingest import Ingest
from stream.topics import partition_of

PER_POLL = (
    ("stream.decode", "Decoder.decode", DECODE),
    ("state.poll_batch", "PollBatch.add", APPEND),
    ("state.rocks_store", "RocksStore.write", WRITE),
    ("state.rocks_store", "RocksStore.flush", FLUSH),
)
"""Called once per partition and poll: clocks on them cost nothing that shows."""
HOT, BESIDE, ELSEWHERE = "hot_user", "hot_partition", "other_partitions"


class WatchedIngest(Ingest):
    """Looks at the clock after each poll that was applied and committed."""

    def __init__(self, job: Job, *parts: Any) -> None:
        """`parts` as for Ingest."""
        super().__init__(*parts)
        self._hot = job.hot_user.encode()
        self._hot_partition = partition_of(job.hot_user, job.topics.num_partitions)
        self._delays_ms: defaultdict[str, list[npt.NDArray[np.float64]]] = defaultdict(list)
        self._apply_ms: list[float] = []

    def measured(self) -> dict[str, Any]:
        """Milliseconds by whose events waited, and those a poll took."""
        delays = {whose: quantiles_ms(np.concatenate(v)) for whose, v in self._delays_ms.items()}
        return {"delays": delays, "apply": quantiles_ms(self._apply_ms)}

    async def _apply_whole(self, poll: Poll, told: set[tuple[int, int]]) -> bool:
        start = time.perf_counter()
        whole = await super()._apply_whole(poll, told)
        if whole and poll.records:
            self._apply_ms.append(1_000 * (time.perf_counter() - start))
            self._note(poll, time.time() * 1_000)
        return whole

    def _note(self, poll: Poll, now_ms: float) -> None:
        for partition, records in poll.records.items():
            waited = now_ms - np.array([record.timestamp for record in records], np.float64)
            if partition != self._hot_partition:
                self._delays_ms[ELSEWHERE].append(waited)
                continue
            is_hot = np.array([record.key == self._hot for record in records])
            self._delays_ms[HOT].append(waited[is_hot])
            self._delays_ms[BESIDE].append(waited[~is_hot])


async def _ingest(job: Job) -> dict[str, Any]:
    watched: list[WatchedIngest] = []

    def make(*parts: Any) -> Ingest:
        watched.append(WatchedIngest(job, *parts))
        return watched[0]

    clock = Clock()
    install(clock, PER_POLL)
    async with Node(job, make) as node:
        await wait_for_word(job, "ready")
        clock.clear()
        outcome = await node.ingest_until(lambda: node.applied() >= job.num_events)
    measured = watched[0].measured()
    num_polls = measured["apply"]["count"]
    parts = {part: round(1e3 * s / num_polls, 2) for part, s in clock.wall.items()}
    return {**outcome, **measured, "poll_parts_ms": parts}


def gemstream(job: Job) -> dict[str, Any]:
    """Ours, on a topic that is being filled."""
    return asyncio.run(_ingest(job))
