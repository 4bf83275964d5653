"""The ingest half of a state node for tests on a real broker, and what they produce and read."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from aiokafka import AIOKafkaConsumer, ConsumerRecord

from protos.interaction_pb2 import Interaction
from state.partition_stores import PartitionStores
from state.rocks_config import RocksConfig
from state.rocks_store import RocksMemory, RocksStore
from stream.consumer import ConsumerConfig, InteractionConsumer
from stream.dead_letters import DeadLetters
from stream.decode import Decoder, DecoderConfig
from stream.ingest import Ingest
from stream.producer import Producer, wait_for_delivery
from stream.topics import TopicsConfig, partition_of
from tests.state.builders import SMALL, START_MS

DEADLINE_S = 30.0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.02)


def event(user: str, number: int) -> tuple[bytes, bytes]:
    message = Interaction(
        event_id=f"{user}-{number}",
        user_id=user,
        item_id=number + 1,
        event_time_ms=START_MS + number,
    )
    return user.encode(), message.SerializeToString()


async def produce(
    bootstrap: str, topic: str, records: Sequence[tuple[bytes | None, bytes | None]]
) -> None:
    async with Producer(bootstrap) as producer:
        await wait_for_delivery(
            [await producer.send(topic, value, key=key) for key, value in records]
        )


class Node:
    """The ingest half of a state node on its own store."""

    def __init__(
        self,
        bootstrap: str,
        topics: TopicsConfig,
        path: Path,
        group: str,
        *,
        accept_hole: bool = False,
        decoder: Decoder | None = None,
    ) -> None:
        self.topics = topics
        memory = RocksMemory(RocksConfig())
        self.stores = PartitionStores(lambda n: RocksStore(path / str(n), memory), SMALL)
        self.producer = Producer(bootstrap)
        config = ConsumerConfig(group=group, accept_hole=accept_hole)
        self.consumer = InteractionConsumer(bootstrap, topics.interactions, config, self.stores)
        self.moves = 0
        self.ingest = Ingest(
            self.consumer,
            decoder or Decoder(DecoderConfig(), topics.num_partitions),
            DeadLetters(self.producer, topics.interactions, topics.dead_letters),
            self.stores,
            self.count_move,
        )

    def count_move(self) -> None:
        self.moves += 1

    def items(self, user: str) -> list[int]:
        partition = partition_of(user, self.topics.num_partitions)
        if partition not in self.stores.partitions():
            return []
        stored = self.stores.get(partition).read_user(user, "")
        return [] if stored is None else stored.decode(user).rows["item_id"].tolist()

    def applied(self) -> int:
        return self.ingest.counters["interactions"]


@contextlib.asynccontextmanager
async def running(node: Node) -> AsyncIterator[asyncio.Task[None]]:
    async with node.producer:
        await node.consumer.start()
        task = asyncio.create_task(node.ingest.run())
        try:
            yield task
        except TimeoutError:
            if task.done():
                await task  # the reason why the test waited in vain
            raise
        finally:
            node.ingest.stop()
            await asyncio.gather(task, return_exceptions=True)
            await node.consumer.stop()
            node.stores.close_all()


async def read_all(bootstrap: str, topic: str, count: int) -> list[ConsumerRecord]:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        async with asyncio.timeout(DEADLINE_S):
            return [await consumer.getone() for _ in range(count)]
    finally:
        await consumer.stop()
