"""Micro-batches: what waits while the network is busy goes through it together, as soon as it is free.

Nothing is delayed to fill a batch. Work that nobody waits for any more is not begun, and stops between two steps.
"""

import asyncio
import contextlib
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from services.errors import DeadlineExceeded, Overloaded
from state.errors import ConfigError

Job = TypeVar("Job")
Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class BatchingConfig:
    """How much may wait, and how much goes together."""

    max_batch: int = 8
    """Requests that go through the network together; 1: each by itself."""
    max_pending: int = 64
    """Requests that may wait; more are refused with RESOURCE_EXHAUSTED."""

    def __post_init__(self) -> None:
        """Check the limits."""
        if min(self.max_batch, self.max_pending) < 1:
            raise ConfigError(
                f"max_batch is {self.max_batch} and max_pending {self.max_pending}; both must be at least 1"
            )


class NobodyWaits(Exception):
    """All of a batch was cancelled, or its time ran out."""


@dataclass(eq=False)
class Ticket(Generic[Job, Answer]):
    """A job that waits, or is worked on."""

    job: Job
    future: asyncio.Future[Answer]
    deadline_s: float | None
    """As time.monotonic."""
    submitted_s: float = field(default_factory=time.perf_counter)

    @property
    def is_wanted(self) -> bool:
        """Whether anybody still waits for it. May be asked from any thread."""
        in_time = self.deadline_s is None or time.monotonic() < self.deadline_s
        return in_time and not self.future.done()


Work = Callable[[Sequence[Ticket[Job, Answer]], Callable[[], None]], Sequence[Answer | Exception]]
"""From a batch and a function that raises NobodyWaits when it may stop, an answer or a failure for each."""


class Batcher(Generic[Job, Answer]):
    """One batch at a time, in the executor's thread. `run` must be running."""

    def __init__(self, work: Work[Job, Answer], executor: Executor, config: BatchingConfig) -> None:
        """`work` is called from the executor."""
        self._work = work
        self._executor = executor
        self._config = config
        self._waiting: deque[Ticket[Job, Answer]] = deque()
        self._arrived = asyncio.Event()
        self._seconds_per_job = 0.01
        self._in_hand = 0
        self._begun_s: float | None = None
        self.counters: Counter[str] = Counter()
        """`batches`, `jobs`, `shed`, `expired`, `cancelled`."""

    @property
    def num_pending(self) -> int:
        """Jobs that wait or are worked on."""
        return len(self._waiting) + self._in_hand

    @property
    def batch_s(self) -> float:
        """How long the batch in hand has been in hand; 0 without one. From any thread."""
        begun_s = self._begun_s
        return 0.0 if begun_s is None else time.perf_counter() - begun_s

    async def submit(self, job: Job, deadline_s: float | None = None) -> Answer:
        """The job's answer. Raises Overloaded, DeadlineExceeded, and what `work` gives as a failure."""
        if len(self._waiting) >= self._config.max_pending:
            self._sweep()
        if len(self._waiting) >= self._config.max_pending:
            self.counters["shed"] += 1
            raise self._overloaded()
        ticket = Ticket[Job, Answer](job, asyncio.get_running_loop().create_future(), deadline_s)
        self._waiting.append(ticket)
        self._arrived.set()
        remaining_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        try:
            async with asyncio.timeout(remaining_s):
                return await ticket.future
        except TimeoutError as error:
            self.counters["expired"] += 1
            raise DeadlineExceeded("the answer was not ready in the time that was given") from error
        except asyncio.CancelledError:
            self.counters["cancelled"] += 1
            raise

    async def run(self) -> None:
        """Work through what is submitted, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while batch := self._take():
                self._in_hand = len(batch)
                self._begun_s = started_s = time.perf_counter()
                with contextlib.suppress(NobodyWaits):
                    answers = await loop.run_in_executor(self._executor, self._attempt, batch)
                    _hand_out(batch, answers)
                self._in_hand, self._begun_s = 0, None
                self.counters["batches"] += 1
                self.counters["jobs"] += len(batch)
                spent_s = (time.perf_counter() - started_s) / len(batch)
                self._seconds_per_job += 0.1 * (spent_s - self._seconds_per_job)

    def _attempt(self, batch: Sequence[Ticket[Job, Answer]]) -> Sequence[Answer | Exception]:
        def check() -> None:
            if not any(ticket.is_wanted for ticket in batch):
                raise NobodyWaits

        check()
        try:
            return self._work(batch, check)
        except NobodyWaits:
            raise
        except Exception as error:  # of the batch as a whole: its jobs are tried one by one
            if len(batch) == 1:
                return [error]
        return [answer for ticket in batch for answer in self._attempt_one(ticket)]

    def _attempt_one(self, ticket: Ticket[Job, Answer]) -> Sequence[Answer | Exception]:
        try:
            return self._attempt([ticket])
        except NobodyWaits as nobody:
            return [nobody]

    def _take(self) -> list[Ticket[Job, Answer]]:
        batch: list[Ticket[Job, Answer]] = []
        while self._waiting and len(batch) < self._config.max_batch:
            ticket = self._waiting.popleft()
            if ticket.is_wanted:
                batch.append(ticket)
        return batch

    def _overloaded(self) -> Overloaded:
        """With a delay spread around the time that the queue takes: refused callers do not return together."""
        estimate_s = max(0.05, self.num_pending * self._seconds_per_job)
        retry_after_s = round(random.uniform(0.5, 1.5) * estimate_s, 3)  # noqa: S311
        return Overloaded(
            retry_after_s,
            f"{len(self._waiting)} requests wait, which is the limit (max_pending in [inference_node.batching]); "
            f"ask again in {retry_after_s:g} s",
        )

    def _sweep(self) -> None:
        """Let go of what nobody waits for."""
        self._waiting = deque(ticket for ticket in self._waiting if ticket.is_wanted)


def _hand_out(batch: Sequence[Ticket[Job, Answer]], answers: Sequence[Answer | Exception]) -> None:
    for ticket, answer in zip(batch, answers, strict=True):
        if ticket.future.done():
            continue
        if isinstance(answer, Exception):
            ticket.future.set_exception(answer)
        else:
            ticket.future.set_result(answer)
