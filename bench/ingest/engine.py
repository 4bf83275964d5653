"""One engine in a process of its own: reads the whole topic, prints seconds, bytes on disk and peak memory as JSON.

The job is the same for all: append each event to its user's history in order and keep it durably with the offset. Faust
and Quix keep the newest 256 events of a user as bytes; ours keeps segments, chunks, duplicates and all.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stream.topics import TopicsConfig

NEWEST = 256


def bare(bootstrap: str, topics: TopicsConfig, num_events: int, _: Path) -> float:
    """An aiokafka consumer that throws everything away."""
    from aiokafka import AIOKafkaConsumer

    async def run() -> float:
        consumer = AIOKafkaConsumer(
            topics.interactions, bootstrap_servers=bootstrap, auto_offset_reset="earliest"
        )
        await consumer.start()
        start, seen = time.perf_counter(), 0
        while seen < num_events:
            polled = await consumer.getmany(timeout_ms=1_000, max_records=5_000)
            seen += sum(map(len, polled.values()))
        seconds = time.perf_counter() - start
        await consumer.stop()
        return seconds

    return asyncio.run(run())


def gemstream(bootstrap: str, topics: TopicsConfig, num_events: int, directory: Path) -> float:
    """The state node's own ingest, with its settings."""
    from services.settings import StateNodeConfig
    from services.state_node import relax_collector
    from state.partition_stores import PartitionStores
    from state.rocks_config import RocksConfig
    from state.rocks_store import RocksMemory, RocksStore
    from state.segments import HistoryConfig

    relax_collector()
    memory = RocksMemory(RocksConfig())
    stores = PartitionStores(
        lambda partition: RocksStore(directory / str(partition), memory),
        HistoryConfig(),
        StateNodeConfig().max_cached_users // topics.num_partitions,
    )
    try:
        return asyncio.run(_ingest(bootstrap, topics, num_events, stores))
    finally:
        stores.close_all()


async def _ingest(bootstrap: str, topics: TopicsConfig, num_events: int, stores: Any) -> float:
    from stream.consumer import ConsumerConfig, InteractionConsumer
    from stream.dead_letters import DeadLetters
    from stream.decode import Decoder, DecoderConfig
    from stream.ingest import Ingest
    from stream.producer import Producer

    consumer = InteractionConsumer(
        bootstrap, topics.interactions, ConsumerConfig(group="bench"), stores
    )
    async with Producer(bootstrap) as producer:
        letters = DeadLetters(producer, topics.interactions, topics.dead_letters)
        decoder = Decoder(DecoderConfig(), topics.num_partitions)
        ingest = Ingest(consumer, decoder, letters, stores, lambda: None)
        await consumer.start()
        start = time.perf_counter()
        task = asyncio.create_task(ingest.run())
        while ingest.counters["interactions"] < num_events and not task.done():
            await asyncio.sleep(0.02)
        seconds = time.perf_counter() - start
        ingest.stop()
        await task
        await consumer.stop()
    return seconds


def faust_table(bootstrap: str, topics: TopicsConfig, num_events: int, directory: Path) -> float:
    """A Faust table on rocksdict: the newest events of a user, appended as bytes."""
    import faust

    async def run() -> float:
        app = faust.App(
            "bench-faust",
            broker=f"kafka://{bootstrap}",
            store="rocksdb://",
            datadir=str(directory),
            topic_partitions=topics.num_partitions,
            topic_replication_factor=1,
            web_enabled=False,
            consumer_auto_offset_reset="earliest",
        )
        source = app.topic(topics.interactions, key_serializer="raw", value_serializer="raw")
        options = {"driver": "rocksdict", "block_cache_size": 16 << 20}
        table = app.Table("histories", key_type=bytes, value_type=bytes, options=options)
        progress = {"seen": 0, "start": 0.0}
        done = asyncio.Event()

        async def append(stream: faust.StreamT[bytes]) -> None:
            async for key, value in stream.items():
                progress["start"] = progress["start"] or time.perf_counter()
                table[key] = _append(table.get(key) or b"", value)
                progress["seen"] += 1
                if progress["seen"] >= num_events:
                    done.set()

        app.agent(source, name="append")(append)
        app.finalize()
        await app.start()
        await done.wait()
        seconds = time.perf_counter() - progress["start"]
        await app.stop()
        return seconds

    return asyncio.run(run())


def quix(bootstrap: str, topics: TopicsConfig, num_events: int, directory: Path) -> float:
    """Quix Streams with bytes values, its fastest way."""
    from quixstreams import Application

    app = Application(
        broker_address=bootstrap,
        consumer_group="bench-quix",
        auto_offset_reset="earliest",
        state_dir=str(directory),
        loglevel="ERROR",
    )
    topic = app.topic(topics.interactions, key_deserializer="bytes", value_deserializer="bytes")
    started: list[float] = []

    def append(value: bytes, state: Any) -> None:
        if not started:
            started.append(time.perf_counter())
        state.set_bytes("history", _append(state.get_bytes("history", b""), value))

    app.dataframe(topic).update(append, stateful=True)
    app.run(count=num_events, collect=False)
    return time.perf_counter() - started[0]


def _append(history: bytes, value: bytes) -> bytes:
    """Length-prefixed events, the newest 256: the count is kept in the first two bytes."""
    count = int.from_bytes(history[:2], "big") + 1
    events = history[2:] + len(value).to_bytes(2, "big") + value
    if count > NEWEST:
        count, events = NEWEST, events[2 + int.from_bytes(events[:2], "big") :]
    return count.to_bytes(2, "big") + events


ENGINES: dict[str, Callable[[str, TopicsConfig, int, Path], float]] = {
    "bare": bare,
    "gemstream": gemstream,
    "faust": faust_table,
    "quix": quix,
}


def main() -> None:
    """Run one engine."""
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("bootstrap")
    parser.add_argument("topics", type=json.loads)
    parser.add_argument("num_events", type=int)
    parser.add_argument("directory", type=Path)
    given = parser.parse_args()
    topics = TopicsConfig(**given.topics)
    seconds = ENGINES[given.engine](given.bootstrap, topics, given.num_events, given.directory)
    files = [path for path in given.directory.rglob("*") if path.is_file()]
    written = Path("/proc/self/io").read_text().split("write_bytes:")[1].split()[0]
    status = Path("/proc/self/status").read_text()
    outcome = {
        "seconds": seconds,
        "disk_bytes": sum(path.stat().st_size for path in files),
        "written_bytes": int(written),
        "peak_memory_bytes": 1024 * int(status.split("VmHWM:")[1].split()[0]),
    }
    sys.stdout.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main()
