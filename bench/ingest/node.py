"""The state node's own ingest with its settings, in the process of a bench: consumer, decoder, stores, no gRPC."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from bench.ingest.job import Job, announce
from bench.ingest.stopwatch import Stopwatch
from services.settings import StateNodeConfig
from services.state_node import relax_collector
from state.partition_stores import PartitionStores
from state.rocks_config import RocksConfig
from state.rocks_store import RocksMemory, RocksStore
from state.segments import HistoryConfig
from stream.consumer import ConsumerConfig, InteractionConsumer
from stream.dead_letters import DeadLetters
from stream.decode import Decoder, DecoderConfig
from stream.ingest import Ingest
from stream.phases import Phase
from stream.producer import Producer

_LOOK_EVERY_S = 0.01


class Node:
    """Ready once every partition of the job is assigned and open. Use as an async context manager."""

    def __init__(self, job: Job, make_ingest: Callable[..., Ingest] = Ingest) -> None:
        """Nothing is connected yet."""
        relax_collector()
        memory = RocksMemory(RocksConfig())
        self.job = job
        self.stores = PartitionStores(
            lambda partition: RocksStore(job.directory / str(partition), memory),
            HistoryConfig(),
            StateNodeConfig().max_cached_users // job.topics.num_partitions,
        )
        self.consumer = InteractionConsumer(
            job.bootstrap,
            job.topics.interactions,
            ConsumerConfig(group=job.group, session_timeout_ms=60_000),
            self.stores,
        )
        self._make_ingest = make_ingest
        self._decoder = Decoder(DecoderConfig(), job.topics.num_partitions)
        self._producer = Producer(job.bootstrap)

    async def __aenter__(self) -> Self:
        """Join the group, and wait until every partition that is meant for this process has come."""
        await self._producer.__aenter__()
        await self.consumer.start()
        while len(self._open()) != self.job.num_partitions:
            await asyncio.sleep(_LOOK_EVERY_S)
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the group and close everything."""
        await self.consumer.stop()
        await self._producer.__aexit__(error_type, error, traceback)
        self.stores.close_all()

    def _open(self) -> set[int]:
        phases = self.consumer.phases
        opened = phases.in_phase(Phase.CATCHING_UP) | phases.in_phase(Phase.READY)
        return opened & self.consumer.assigned()

    def read_to_the_end(self) -> bool:
        """Whether all that the topic held when its partitions came is applied."""
        return self.consumer.phases.all_ready()

    def applied(self) -> int:
        """Records behind the stores' positions."""
        positions = [
            self.stores.get(partition).position() for partition in self.stores.partitions()
        ]
        return sum(position.next_offset for position in positions if position)

    async def ingest_until(self, is_done: Callable[[], bool]) -> dict[str, Any]:
        """Ingest until `is_done`; seconds, processor seconds and how many interactions were applied."""
        letters = DeadLetters(
            self._producer, self.job.topics.interactions, self.job.topics.dead_letters
        )
        ingest = self._make_ingest(self.consumer, self._decoder, letters, self.stores, lambda: None)
        watch = Stopwatch()
        task = asyncio.create_task(ingest.run())
        while not is_done() and not task.done():
            await asyncio.sleep(_LOOK_EVERY_S)
        outcome = watch.read()
        ingest.stop()
        await task
        return {**outcome, "counters": dict(ingest.counters)}


async def wait_for_word(job: Job, word: str) -> None:
    """As `announce`, while heartbeats go on."""
    await asyncio.to_thread(announce, job, word)


async def ingest(job: Job) -> dict[str, Any]:
    """A whole topic that is filled already, or num_events if `num_first` says that they come later."""
    async with Node(job) as node:
        await wait_for_word(job, "ready")
        outcome = await node.ingest_until(node.read_to_the_end)
        await wait_for_word(job, "done")
    return outcome


def gemstream(job: Job) -> dict[str, Any]:
    """Ours."""
    return asyncio.run(ingest(job))
