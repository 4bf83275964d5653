"""How much of a run's training is spent: by wall clock, or by steps when a run must be repeatable."""

import time


class Budget:
    """A budget of seconds or of steps, counted from its construction."""

    def __init__(self, seconds: float, max_steps: int | None) -> None:
        """`max_steps`, when given, replaces the seconds."""
        self._start = time.monotonic()
        self._seconds = seconds
        self._max_steps = max_steps
        self.steps = 0

    def part(self, share: float) -> "Budget":
        """A budget of its own, beginning now: `share` of the seconds, or as many steps."""
        return Budget(self._seconds * share, self._max_steps)

    def spent(self) -> float:
        """The share of the budget that is spent, 0 to 1."""
        if self._max_steps is not None:
            return min(1.0, self.steps / self._max_steps)
        if self._seconds <= 0:
            return 1.0
        return min(1.0, (time.monotonic() - self._start) / self._seconds)
