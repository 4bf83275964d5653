"""How much of a run's training is spent: by wall clock, or by steps when a run must be repeatable."""

import math
import time


class Budget:
    """A budget of seconds or of steps, counted from its construction; a resumed run counts on."""

    def __init__(self, seconds: float, max_steps: int | None) -> None:
        """`max_steps`, when given, replaces the seconds."""
        self._start = time.monotonic()
        self._earlier_s = 0.0
        self._max_steps = max_steps
        self.seconds = seconds
        self.steps = 0

    def resume(self, seconds: float, elapsed_s: float, steps: int) -> None:
        """Go on where an earlier process of the same run stood."""
        self._start, self._earlier_s = time.monotonic(), elapsed_s
        self.seconds, self.steps = seconds, steps

    @property
    def elapsed_s(self) -> float:
        """Seconds of training, those of earlier processes included."""
        return self._earlier_s + time.monotonic() - self._start

    def part(self, share: float) -> "Budget":
        """A budget of its own, beginning now: `share` of the seconds, or as many steps."""
        return Budget(self.seconds * share, self._max_steps)

    def limit_s(self, share: float) -> float:
        """Seconds that `share` of a time budget are; a step budget, whose run is repeatable, limits no clock."""
        return math.inf if self._max_steps is not None else max(0.0, self.seconds * share)

    @property
    def left_s(self) -> float:
        """Seconds of a time budget that training has not spent, or infinitely many."""
        if self._max_steps is not None:
            return math.inf
        return max(0.0, self.seconds - self.elapsed_s)

    def spent(self) -> float:
        """The share of the budget that is spent, 0 to 1."""
        if self._max_steps is not None:
            return min(1.0, self.steps / self._max_steps)
        if self.seconds <= 0:
            return 1.0
        return min(1.0, self.elapsed_s / self.seconds)
