"""Who asks: one request after the other or several at once, with times as the caller sees them."""

import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.ingest.quantiles import quantiles_ms
from protos import recommender_pb2, recommender_pb2_grpc
from services.channels import Target, open_aio_channel, open_channel

_K = 10
_TIMEOUT_S = 60.0


@dataclass
class Answers:
    """Of some requests."""

    wall_ms: list[float] = field(default_factory=list)
    stages_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, wall_ms: float, response: recommender_pb2.RecommendResponse) -> None:
        """One more. Raises SystemExit for one that is not what was to be measured."""
        if response.source != recommender_pb2.SOURCE_PERSONAL or response.degraded:
            raise SystemExit(f"an answer is not personal, or degraded:\n{response}")
        self.wall_ms.append(wall_ms)
        for stage, spent_ms in response.timings_ms.items():
            self.stages_ms[stage].append(spent_ms)

    def figures(self) -> dict[str, Any]:
        """Quantiles, and the medians of the stages that the node reports."""
        stages = {
            stage: round(statistics.median(spent), 3)
            for stage, spent in sorted(self.stages_ms.items())
        }
        return {**quantiles_ms(self.wall_ms), "stages_p50_ms": stages}


class Caller:
    """Asks one at a time. Use as a context manager."""

    def __init__(self, address: str) -> None:
        """Nothing is connected before the first call."""
        self._channel = open_channel(Target(address))
        self._stub = recommender_pb2_grpc.RecommenderServiceStub(self._channel)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the channel."""
        self._channel.close()

    def ask(self, user: str, answers: Answers | None = None) -> None:
        """One request, noted in `answers`."""
        start_s = time.perf_counter()
        response = self._stub.Recommend(request_for(user), timeout=_TIMEOUT_S)
        if answers is not None:
            answers.add(1e3 * (time.perf_counter() - start_s), response)


def request_for(user: str) -> recommender_pb2.RecommendRequest:
    """What everybody asks: ten items, the node's beam width."""
    return recommender_pb2.RecommendRequest(user_id=user, k=_K)


async def ask_at_once(
    address: str, users: Sequence[str], concurrency: int, seconds: float
) -> dict[str, Any]:
    """So many callers, each asking again as soon as it has its answer; quantiles and requests per second."""
    answers, end = Answers(), time.monotonic() + seconds
    async with open_aio_channel(Target(address)) as channel:
        stub = recommender_pb2_grpc.RecommenderServiceStub(channel)

        async def call(number: int) -> None:
            while time.monotonic() < end:
                user = users[number % len(users)]
                number += concurrency
                start_s = time.perf_counter()
                response = await stub.Recommend(request_for(user), timeout=_TIMEOUT_S)
                answers.add(1e3 * (time.perf_counter() - start_s), response)

        await stub.Recommend(request_for(users[0]), timeout=_TIMEOUT_S)  # connects
        start_s = time.perf_counter()
        await asyncio.gather(*map(call, range(concurrency)))
        took_s = time.perf_counter() - start_s
    return {**answers.figures(), "requests_per_s": round(len(answers.wall_ms) / took_s, 1)}


class ProcessorClock:
    """Processor time of this process and of others, together: of a request, all that it costs anywhere."""

    def __init__(self, pids: Iterable[int]) -> None:
        """The others."""
        self._tasks = [Path(f"/proc/{pid}/task") for pid in pids]
        self._looking_s = 0.0
        """What reading the clock has cost this process: not the requests'."""

    def __call__(self) -> float:
        """Seconds."""
        began_s = time.process_time()
        own_s = began_s - self._looking_s
        nanoseconds = 0
        for tasks in self._tasks:
            for task in tasks.iterdir():
                try:
                    nanoseconds += int((task / "schedstat").read_text().split()[0])
                except FileNotFoundError:
                    continue  # a thread that ended
        self._looking_s += time.process_time() - began_s
        return own_s + nanoseconds / 1e9
