"""Reads of a user with a long history and of one with a short, while the node rests and while it ingests."""

import asyncio
import time
from collections import defaultdict
from typing import Any

import grpc.aio
from rich.table import Table

from bench.ingest.arena import Arena, EngineProcess, console, output
from bench.ingest.log import make_histories
from bench.ingest.quantiles import quantiles_ms
from bench.ingest.reads import BUNDLE, IDLE_READS, PAUSE_S, READERS, realistic_summary
from bench.ingest.records import Record, encode
from bench.lag import GroupWatch
from bench.state_node import StateNodeProcess
from protos import state_pb2, state_pb2_grpc
from services.clients import StateClient
from stream.topics import TopicsConfig

GROUP = "reading"
_TIMEOUT_S = 30.0
_LOOK_EVERY_S = 0.1
_OPTIONS = [("grpc.max_receive_message_length", 16 << 20)]
Quantiles = dict[str, dict[str, float]]


def measure(arena: Arena, load: list[Record]) -> dict[str, Any]:
    """`load` is what is ingested while the users are read.

    It is put into the topic while both nodes stand still, so that they go through it at full speed, alone.
    """
    topics = arena.topics("reading")
    histories = encode(make_histories(READERS), topics.num_partitions)
    arena.fill(topics, histories)
    total = len(histories) + len(load)
    job = arena.job("gemstream-reads", topics, total, held=True, num_first=len(histories))
    directory = arena.directory / "reading-node"
    with EngineProcess(job) as engine:
        with console.status("reading in the process of an idle node"):
            engine.wait_for("idle")
        with StateNodeProcess(directory, arena.bootstrap, topics, GROUP) as node:
            grpc_idle, grpc_busy = _read_by_grpc(arena, node, topics, load)
        with console.status("reading in the process that ingests"):
            engine.release()
            inside = engine.outcome()
    reads = {
        "read_user_idle": inside["idle"],
        "read_user_busy": inside["busy"],
        "grpc_idle": grpc_idle,
        "grpc_busy": grpc_busy,
    }
    _print(reads)
    beside = len(load) / inside["seconds"]
    output.print(f"ingest beside the reader in its process: {beside:,.0f} events/s")
    return {"reads": reads, "reads_ingest_events_per_s": round(beside)}


def _read_by_grpc(
    arena: Arena, node: StateNodeProcess, topics: TopicsConfig, load: list[Record]
) -> tuple[Quantiles, Quantiles]:
    with console.status("reading through gRPC from an idle node"):
        asyncio.run(_put_summaries(node.address))
        idle = asyncio.run(_read(node.address, None))
    node.watched.suspend()
    arena.fill(topics, load)
    node.watched.resume()
    total = len(load) + sum(READERS.values())
    with console.status("reading through gRPC from a node that ingests"):
        busy = asyncio.run(_read(node.address, (arena, topics, total)))
    return idle, busy


async def _put_summaries(address: str) -> None:
    async with StateClient(address, _TIMEOUT_S) as client:
        for user in READERS:
            state = await client.read_user(user, BUNDLE)
            if state is not None and state.meta.lifecycle_boundary:
                summary = realistic_summary(state.meta.lifecycle_boundary)
                await client.put_summary(user, summary, 0, state.meta.epoch)


async def _read(address: str, watch: tuple[Arena, TopicsConfig, int] | None) -> Quantiles:
    """Read each user in turn; until the node has applied so much, or IDLE_READS times."""
    taken_ms: dict[str, list[float]] = defaultdict(list)
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        stub = state_pb2_grpc.StateServiceStub(channel)
        ended = asyncio.create_task(_wait_until_applied(watch))
        for number in range(1 << 30):
            for user in READERS:
                request = state_pb2.GetUserStateRequest(user_id=user, bundle_version=BUNDLE)
                start = time.perf_counter()
                await stub.GetUserState(request, timeout=_TIMEOUT_S)
                taken_ms[user].append(1_000 * (time.perf_counter() - start))
                await asyncio.sleep(PAUSE_S)
            if ended.done() and (watch or number >= IDLE_READS):
                break
        await ended
    return {user: quantiles_ms(values) for user, values in taken_ms.items()}


async def _wait_until_applied(watch: tuple[Arena, TopicsConfig, int] | None) -> None:
    if watch is None:
        return
    arena, topics, total = watch
    async with GroupWatch(arena.bootstrap, topics, GROUP) as group:
        while sum(await group.committed()) < total:
            await asyncio.sleep(_LOOK_EVERY_S)


def _print(reads: dict[str, Quantiles]) -> None:
    table = Table("read", "user", "p50 ms", "p99 ms", "max ms", "reads", title="Reading one user")
    for how, users in reads.items():
        for user, taken in users.items():
            table.add_row(
                how,
                user,
                *(f"{taken[name]:.2f}" for name in ("p50_ms", "p99_ms", "max_ms")),
                f"{taken['count']:,}",
            )
    table.caption = (
        "the reading thread shares the interpreter lock with decoding, appending and RocksDB's writes; gRPC, with "
        "the event loop, too"
    )
    output.print(table)
