"""A distribution as counts by upper bound: observed once per poll or request, read by whoever reports it."""

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds for durations."""


class Histogram:
    """Values by the smallest bound that is not below them. One writer at a time; readers need no lock."""

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        """`bounds` ascend; what lies above the last is counted, too."""
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Observe how many seconds the block takes, unless it raises."""
        started_s = time.perf_counter()
        yield
        self.observe(time.perf_counter() - started_s)

    def counts(self) -> list[int]:
        """How many values lie in each range, one for each bound and one above the last."""
        return list(self._counts)
