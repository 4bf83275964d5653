"""Which users are owed a summary, which of them a job is under way for, and which failed too often: pure bookkeeping.

What it is told comes from the store's dirty marks, which are the truth; all else is forgotten with the process.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from state.errors import ConfigError
from state.user_store import DirtyMark

_MAX_DOUBLINGS = 5
_RETRY_GROWTH = 4


@dataclass(frozen=True, kw_only=True)
class DispatchConfig:
    """When a dirty mark becomes a job, when it becomes one again, and when no more."""

    interval_s: float = 0.25
    redispatch_after_s: float = 30.0
    """A mark that is still there so long after its job was sent gets another; each further one takes twice as long."""
    max_in_flight: int = 4_096
    """Jobs without an outcome, of one node; who has waited longest goes first."""
    max_failures: int = 5
    """So many times a user may fail; then it is a dead letter, and rests until its boundary moves."""

    def __post_init__(self) -> None:
        """Check the limits."""
        if not 0 < self.interval_s <= self.redispatch_after_s:
            raise ConfigError(
                f"interval_s is {self.interval_s}; it must be above 0 and at most "
                f"redispatch_after_s ({self.redispatch_after_s})"
            )
        for name in ("max_in_flight", "max_failures"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")


@dataclass
class Owed:
    """One user with a dirty mark. Times are monotonic seconds."""

    user_id: str
    boundary: int
    since_s: float
    """When the mark was first seen: what has no time in the store counts from then."""
    due_s: float
    """When a job is to be sent, if nothing is heard until then."""
    in_flight: bool = False
    sent: int = 0
    """Jobs since the last outcome."""
    failures: int = 0
    reason: str = ""
    """Of the last failure."""
    resting: bool = False
    """A dead letter tells of it; no more jobs at this boundary."""
    partition: int = 0
    """Of the newest job in its topic, as `offset`."""
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """The state of all marks."""

    users: int
    """Owed a summary, resting ones included."""
    resting: int
    oldest_s: float
    """How long the oldest mark has waited since this process first saw it, resting ones aside; 0 without any."""


class OwedSummaries:
    """Every method takes the time it is called at."""

    def __init__(self, config: DispatchConfig) -> None:
        """Nobody yet."""
        self._config = config
        self._owed: dict[str, Owed] = {}

    def see(self, marks: Iterable[DirtyMark], now_s: float) -> None:
        """These are all the marks there are. Who rests, or failed, begins anew where the boundary is another."""
        known, self._owed = self._owed, {}
        for mark in marks:
            owed = known.get(mark.user_id)
            if owed is None:
                owed = Owed(mark.user_id, mark.lifecycle_boundary, now_s, now_s)
            elif owed.boundary != mark.lifecycle_boundary:
                owed.boundary = mark.lifecycle_boundary
                if owed.failures:
                    owed.failures, owed.resting, owed.due_s = 0, False, now_s
            self._owed[mark.user_id] = owed

    def due(self, now_s: float) -> list[Owed]:
        """Who is to get a job now, longest waiting first: one job per user until something is heard of it."""
        waiting = [owed for owed in self._active() if owed.due_s <= now_s]
        under_way = sum(owed.in_flight and owed.due_s > now_s for owed in self._owed.values())
        room = max(0, self._config.max_in_flight - under_way)
        return heapq.nsmallest(room, waiting, key=lambda owed: owed.since_s)

    def send(self, owed: Owed, now_s: float) -> None:
        """A job is sent."""
        doublings = min(owed.sent, _MAX_DOUBLINGS)
        owed.in_flight, owed.sent = True, owed.sent + 1
        owed.due_s = now_s + self._config.redispatch_after_s * 2**doublings

    def unsend(self, owed: Owed, now_s: float) -> None:
        """The job did not reach its topic, or nobody knows."""
        owed.in_flight, owed.sent, owed.due_s = False, owed.sent - 1, now_s

    def progressed(self, user_id: str, now_s: float) -> None:
        """A worker handed in a part, and goes on with the next."""
        if owed := self._owed.get(user_id):
            owed.sent, owed.failures = 1, 0
            owed.due_s = now_s + self._config.redispatch_after_s

    def released(self, user_id: str, now_s: float) -> None:
        """A worker stopped without a fault; a mark that is still there is due at once."""
        if owed := self._owed.get(user_id):
            owed.in_flight, owed.sent, owed.due_s = False, 0, now_s

    def completed(self, user_id: str) -> None:
        """The summary ends at the boundary; a mark seen from now on is a new one."""
        self._owed.pop(user_id, None)

    def failed(self, user_id: str, reason: str, now_s: float) -> None:
        """A worker met an error with this user: tried again later, and ever later."""
        if owed := self._owed.get(user_id):
            owed.failures, owed.reason = owed.failures + 1, reason
            owed.in_flight, owed.sent = False, 0
            wait_s = self._config.interval_s * _RETRY_GROWTH ** min(owed.failures, 16)
            owed.due_s = now_s + min(wait_s, self._config.redispatch_after_s)

    def poisoned(self) -> list[Owed]:
        """Who failed too often and does not rest yet: to be told as a dead letter first."""
        return [
            owed
            for owed in self._owed.values()
            if owed.failures >= self._config.max_failures and not owed.resting
        ]

    def next_due_s(self, now_s: float) -> float | None:
        """When the next one is due without anything being heard. Who is due already waits for room."""
        return min((owed.due_s for owed in self._active() if owed.due_s > now_s), default=None)

    def backlog(self, now_s: float) -> Backlog:
        """Counts and age."""
        resting = sum(owed.resting for owed in self._owed.values())
        oldest_s = min(
            (owed.since_s for owed in self._owed.values() if not owed.resting), default=now_s
        )
        return Backlog(users=len(self._owed), resting=resting, oldest_s=now_s - oldest_s)

    def _active(self) -> Iterable[Owed]:
        limit = self._config.max_failures
        return (owed for owed in self._owed.values() if owed.failures < limit)
