"""Until when a group member may believe that its partitions are its own."""

import time

_SAFETY = 0.8
"""Share of the session timeout that is trusted; the rest is for clocks that run unlike the broker's."""


def _now_s() -> float:
    """Seconds that go on while the process is stopped and while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Lease:
    """Renewed by every answer of the group's coordinator that confirms the membership.

    The coordinator gives a member's partitions away no sooner than the session timeout after the last request that it
    accepted. A process that was stopped or cut off longer than that finds its lease expired, and writes nothing before
    the coordinator has confirmed it again.
    """

    def __init__(self, session_timeout_s: float) -> None:
        """Expired until renewed."""
        self._trusted_s = session_timeout_s * _SAFETY
        self._until_s = 0.0

    def now_s(self) -> float:
        """When a request is sent, for `renew` after its answer."""
        return _now_s()

    def renew(self, asked_at_s: float) -> None:
        """A request sent at `asked_at_s` was accepted."""
        self._until_s = max(self._until_s, asked_at_s + self._trusted_s)

    def drop(self) -> None:
        """The membership ended."""
        self._until_s = 0.0

    def remaining_s(self) -> float:
        """Seconds left; not positive once expired."""
        return self._until_s - _now_s()

    def is_due(self) -> bool:
        """Whether half of it has gone by."""
        return self.remaining_s() < self._trusted_s / 2
