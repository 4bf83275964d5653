"""Where the time of an event goes: functions of the ingest wrapped with clocks, in a run that nobody else times.

The processor time of each thread is shared out among the wrapped functions it is in, the innermost gets it. Time that a
thread waits for the interpreter lock, the disk or the broker is no processor time; `wall` has that, too.
"""

import asyncio
import functools
import importlib
import inspect
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

from bench.ingest.job import Job
from bench.ingest.node import Node

POLL, DECODE, APPEND, FOLD, CODEC, GET, WRITE, FLUSH, COMMIT = (
    "aiokafka_poll",
    "decode",
    "group_append",
    "fold",
    "codec",
    "rocksdb_get",
    "rocksdb_write",
    "rocksdb_flush",
    "commit",
)
BACKGROUND, REST = "rocksdb_background", "rest"
WRAPPED = (
    ("aiokafka.consumer.fetcher", "Fetcher._proc_fetch_request", POLL),
    ("stream.consumer", "InteractionConsumer.poll", POLL),
    ("stream.consumer", "InteractionConsumer.commit", COMMIT),
    ("stream.decode", "Decoder.decode", DECODE),
    ("state.poll_batch", "PollBatch.add", APPEND),
    ("state.poll_batch", "PollBatch._add_user", FOLD),
    ("state.append", "encode_heads", CODEC),
    ("state.append", "encode_records", CODEC),
    ("state.poll_batch", "encode_heads", CODEC),
    ("state.poll_batch", "encode_rows", CODEC),
    ("state.poll_batch", "decode_rows", CODEC),
    ("state.head_table", "decode_heads", CODEC),
    ("state.poll_batch", "read_tail_blocks", GET),
    ("state.poll_batch", "read_chunks", GET),
    ("state.rocks_store", "RocksStore.get", GET),
    ("state.rocks_store", "RocksStore.scan", GET),
    ("state.rocks_store", "RocksStore.write", WRITE),
    ("state.rocks_store", "RocksStore.flush", FLUSH),
)


class Clock:
    """Seconds and calls by part; exclusive, so that the parts add up."""

    def __init__(self) -> None:
        """Nothing is wrapped yet."""
        self.cpu: defaultdict[str, float] = defaultdict(float)
        self.wall: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self._now = threading.local()

    def clear(self) -> None:
        """Begin anew."""
        self.cpu.clear()
        self.wall.clear()
        self.calls.clear()

    def wrap(self, function: Callable[..., Any], part: str, name: str) -> Callable[..., Any]:
        """The same function, timed; of a coroutine only the steps between two waits."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def steps(*args: Any, **kwargs: Any) -> Any:
                self.calls[name] += 1
                return await _Steps(self, part, function(*args, **kwargs))

            return steps

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            self.enter(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        return timed

    def enter(self, part: str) -> None:
        """What follows in this thread is `part`'s, until `leave`."""
        stack = self._stack()
        self._book(stack)
        stack.append(part)

    def leave(self) -> None:
        """The part that was entered last ends."""
        stack = self._stack()
        self._book(stack)
        stack.pop()

    def _stack(self) -> list[str]:
        if not hasattr(self._now, "stack"):
            self._now.stack = []
            self._now.cpu = self._now.wall = 0.0
        return self._now.stack  # type: ignore[no-any-return]

    def _book(self, stack: list[str]) -> None:
        cpu, wall = time.thread_time(), time.perf_counter()
        if stack:
            self.cpu[stack[-1]] += cpu - self._now.cpu
            self.wall[stack[-1]] += wall - self._now.wall
        self._now.cpu, self._now.wall = cpu, wall


class _Steps:
    """Runs a coroutine with the clock on while it runs, and off while it waits."""

    def __init__(self, clock: Clock, part: str, coroutine: Any) -> None:
        self._clock, self._part, self._coroutine = clock, part, coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = functools.partial(self._coroutine.send, None)
        while True:
            self._clock.enter(self._part)
            try:
                waited_for = step()
            except StopIteration as end:
                return end.value
            finally:
                self._clock.leave()
            try:
                sent = yield waited_for
                step = functools.partial(self._coroutine.send, sent)
            except BaseException as error:  # the wait was cancelled: the coroutine hears it
                step = functools.partial(self._coroutine.throw, error)


def install(clock: Clock, wrapped: Iterable[tuple[str, str, str]] = WRAPPED) -> None:
    """Wrap everything in `wrapped`, in this process."""
    for module_name, path, part in wrapped:
        owner: Any = importlib.import_module(module_name)
        *outer, name = path.split(".")
        for step in outer:
            owner = getattr(owner, step)
        setattr(owner, name, clock.wrap(getattr(owner, name), part, path))


def background_seconds() -> float:
    """Processor time of RocksDB's threads so far: compaction and flushing of memtables."""
    ticks = 0
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().startswith("rocksdb"):
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / 100


async def _ingest(job: Job) -> dict[str, Any]:
    clock = Clock()
    install(clock)
    async with Node(job) as node:
        clock.clear()
        background = background_seconds()
        outcome = await node.ingest_until(node.read_to_the_end)
        cpu = dict(clock.cpu)
        cpu[BACKGROUND] = background_seconds() - background
    cpu[REST] = max(0.0, outcome["cpu_seconds"] - sum(cpu.values()))
    micros = 1e6 / job.num_events
    return {
        **outcome,
        "cpu_us": {part: round(seconds * micros, 3) for part, seconds in cpu.items()},
        "wall_us": {part: round(seconds * micros, 3) for part, seconds in clock.wall.items()},
        "calls": dict(clock.calls),
    }


def gemstream(job: Job) -> dict[str, Any]:
    """Ours, with clocks."""
    return asyncio.run(_ingest(job))
