"""The same job by others: append each event to its user's history in order and keep it durably with the offset.

Faust and Quix keep the newest 256 events of a user as bytes; `bare` throws everything away.
"""

import asyncio
from typing import Any

from bench.ingest.job import Job
from bench.ingest.stopwatch import Stopwatch

NEWEST = 256


def bare(job: Job) -> dict[str, Any]:
    """An aiokafka consumer and nothing else."""
    from aiokafka import AIOKafkaConsumer

    async def run() -> dict[str, Any]:
        consumer = AIOKafkaConsumer(
            job.topics.interactions, bootstrap_servers=job.bootstrap, auto_offset_reset="earliest"
        )
        await consumer.start()
        watch, seen = Stopwatch(), 0
        while seen < job.num_events:
            polled = await consumer.getmany(timeout_ms=1_000, max_records=5_000)
            seen += sum(map(len, polled.values()))
        outcome = watch.read()
        await consumer.stop()
        return outcome

    return asyncio.run(run())


def faust_table(job: Job) -> dict[str, Any]:
    """A Faust table on rocksdict."""
    import faust

    async def run() -> dict[str, Any]:
        app = faust.App(
            job.group,
            broker=f"kafka://{job.bootstrap}",
            store="rocksdb://",
            datadir=str(job.directory),
            topic_partitions=job.topics.num_partitions,
            topic_replication_factor=1,
            web_enabled=False,
            consumer_auto_offset_reset="earliest",
        )
        source = app.topic(job.topics.interactions, key_serializer="raw", value_serializer="raw")
        options = {"driver": "rocksdict", "block_cache_size": 16 << 20}
        table = app.Table("histories", key_type=bytes, value_type=bytes, options=options)
        watches: list[Stopwatch] = []
        done = asyncio.Event()

        async def append(stream: faust.StreamT[bytes]) -> None:
            seen = 0
            async for key, value in stream.items():
                if not watches:
                    watches.append(Stopwatch())
                table[key] = append_newest(table.get(key) or b"", value)
                seen += 1
                if seen >= job.num_events:
                    done.set()

        app.agent(source, name="append")(append)
        app.finalize()
        await app.start()
        await done.wait()
        outcome = watches[0].read()
        await app.stop()
        return outcome

    return asyncio.run(run())


def quix(job: Job) -> dict[str, Any]:
    """Quix Streams with bytes values, its fastest way."""
    from quixstreams import Application

    app = Application(
        broker_address=job.bootstrap,
        consumer_group=job.group,
        auto_offset_reset="earliest",
        state_dir=str(job.directory),
        loglevel="ERROR",
    )
    topic = app.topic(job.topics.interactions, key_deserializer="bytes", value_deserializer="bytes")
    watches: list[Stopwatch] = []

    def append(value: bytes, state: Any) -> None:
        if not watches:
            watches.append(Stopwatch())
        state.set_bytes("history", append_newest(state.get_bytes("history", b""), value))

    app.dataframe(topic).update(append, stateful=True)
    app.run(count=job.num_events, collect=False)
    return watches[0].read()


def append_newest(history: bytes, value: bytes) -> bytes:
    """Length-prefixed events, the newest 256: the count is kept in the first two bytes."""
    count = int.from_bytes(history[:2], "big") + 1
    events = history[2:] + len(value).to_bytes(2, "big") + value
    if count > NEWEST:
        count, events = NEWEST, events[2 + int.from_bytes(events[:2], "big") :]
    return count.to_bytes(2, "big") + events
