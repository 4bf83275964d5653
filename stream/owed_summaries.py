"""Which users are owed a summary, which of them a job is under way for, and which failed too often: pure bookkeeping.

What it is told comes from the store's dirty marks, which are the truth; all else is forgotten with the process.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from state.errors import ConfigError
from state.user_store import DirtyMark

_MAX_DOUBLINGS = 5
"""Of the wait for a job that nothing is heard of."""
_RETRY_GROWTH = 4
"""Of the wait after a failure, from one to the next."""


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


Key = tuple[str, str]
"""User id, and the version of the bundle that is being rolled out; "" for the ordinary one."""


@dataclass
class Owed:
    """One dirty mark. Times are monotonic seconds."""

    user_id: str
    bundle_version: str
    boundary: int
    since_s: float
    """When the mark was first seen: what has no time in the store counts from then."""
    due_s: float = 0.0
    """When a job is to be sent again, if nothing is heard until then."""
    sent: int = 0
    """Jobs since the last outcome."""
    failures: int = 0
    reason: str = ""
    """Of the last failure."""
    partition: int = 0
    """Of the newest job in its topic, as `offset`."""
    offset: int = 0

    @property
    def key(self) -> Key:
        """Of its mark."""
        return self.user_id, self.bundle_version


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """The state of all marks."""

    users: int
    """Owed a summary, resting ones included; one who is owed those of two bundles is two."""
    resting: int
    oldest_s: float
    """How long the oldest mark has waited since this process first saw it, resting ones aside; 0 without any."""


@dataclass(frozen=True)
class Changes:
    """In what the marks differ from what is known."""

    marks: list[DirtyMark]
    """New, or at another boundary."""
    gone: list[Key]

    def parts(self, size: int) -> Iterator["Changes"]:
        """The same in parts of at most `size` each, what is gone first."""
        for start in range(0, len(self.gone), size):
            yield Changes([], self.gone[start : start + size])
        for start in range(0, len(self.marks), size):
            yield Changes(self.marks[start : start + size], [])
        yield Changes([], [])


class OwedSummaries:
    """Nothing here but `changes` looks at all users: there may be millions. Methods take the time they are called at."""

    def __init__(self, config: DispatchConfig) -> None:
        """Nobody yet."""
        self._config = config
        self._owed: dict[Key, Owed] = {}
        self._waiting: dict[Key, Owed] = {}
        """For their first job, in the order in which they were seen."""
        self._under_way: dict[Key, Owed] = {}
        """With a job, or to be tried again: at most `max_in_flight`, but for those that come back from rest."""
        self._poisoned: dict[Key, Owed] = {}
        self._resting: dict[Key, Owed] = {}
        self._seen_at_s: float | None = None

    def wants_marks(self, now_s: float) -> bool:
        """Whether a look at the store is due: there is room for more than who waits here, or the last look is long ago."""
        room = self._config.max_in_flight - len(self._under_way)
        return (
            self._seen_at_s is None
            or len(self._waiting) <= room
            or now_s - self._seen_at_s >= self._config.redispatch_after_s
        )

    def changes(self, marks: Sequence[DirtyMark]) -> Changes:
        """`marks` are all there are. May run in another thread than everything else."""
        known, marked = self._owed, {_key(mark) for mark in marks}
        gone = [key for key in list(known) if key not in marked]
        return Changes([mark for mark in marks if _is_news(mark, known.get(_key(mark)))], gone)

    def see(self, changes: Changes, now_s: float) -> None:
        """Who rests, or failed, begins anew where the boundary is another."""
        self._seen_at_s = now_s
        for key in changes.gone:
            self.completed(*key)
        for mark in changes.marks:
            key = _key(mark)
            owed = self._owed.get(key)
            if owed is None:
                owed = Owed(*key, mark.lifecycle_boundary, now_s)
                self._owed[key] = self._waiting[key] = owed
            owed.boundary = mark.lifecycle_boundary
            if owed.failures:
                self._try_again(owed, now_s)

    def due(self, now_s: float) -> list[Owed]:
        """Who is to get a job now, longest waiting first: one job per user until something is heard of it."""
        again = [owed for owed in self._under_way.values() if owed.due_s <= now_s]
        room = max(0, self._config.max_in_flight - len(self._under_way))
        return sorted([*again, *islice(self._waiting.values(), room)], key=lambda one: one.since_s)

    def send(self, owed: Owed, now_s: float) -> None:
        """A job is sent."""
        doublings = min(owed.sent, _MAX_DOUBLINGS)
        owed.sent += 1
        self._wait(owed, now_s + self._config.redispatch_after_s * 2**doublings)

    def unsend(self, owed: Owed, now_s: float) -> None:
        """The job did not reach its topic, or nobody knows."""
        if owed.key in self._under_way:
            owed.sent, owed.due_s = max(0, owed.sent - 1), now_s

    def progressed(self, user_id: str, now_s: float, bundle_version: str = "") -> None:
        """A worker handed in a part, and goes on with the next."""
        if owed := self._owed.get((user_id, bundle_version)):
            owed.sent, owed.failures = 1, 0
            self._wait(owed, now_s + self._config.redispatch_after_s)

    def released(self, user_id: str, now_s: float, bundle_version: str = "") -> None:
        """A worker stopped without a fault; a mark that is still there is due at once."""
        if owed := self._owed.get((user_id, bundle_version)):
            self._try_again(owed, now_s)

    def completed(self, user_id: str, bundle_version: str = "") -> None:
        """The summary ends at the boundary, or the user is gone; a mark seen from now on is a new one."""
        self._owed.pop((user_id, bundle_version), None)
        self._leave((user_id, bundle_version))

    def failed(self, user_id: str, reason: str, now_s: float, bundle_version: str = "") -> None:
        """A worker met an error with this user: tried again later, and ever later, until it is poisoned."""
        owed = self._owed.get((user_id, bundle_version))
        if owed is None or owed.key in self._poisoned or owed.key in self._resting:
            return
        owed.sent, owed.failures, owed.reason = 0, owed.failures + 1, reason
        wait_s = self._config.interval_s * _RETRY_GROWTH ** min(owed.failures, _MAX_DOUBLINGS)
        self._wait(owed, now_s + min(wait_s, self._config.redispatch_after_s))
        if owed.failures >= self._config.max_failures:
            self._leave(owed.key)
            self._poisoned[owed.key] = owed

    def poisoned(self) -> list[Owed]:
        """Who failed too often and does not rest yet: to be told as a dead letter first."""
        return list(self._poisoned.values())

    def rest(self, owed: Owed) -> None:
        """A dead letter tells of it: no more jobs at this boundary."""
        if self._poisoned.pop(owed.key, None):
            self._resting[owed.key] = owed

    def next_due_s(self, now_s: float) -> float | None:
        """When the next one is due without anything being heard; None: nobody is."""
        later = (owed.due_s for owed in self._under_way.values() if owed.due_s > now_s)
        return min(later, default=None)

    def backlog(self, now_s: float) -> Backlog:
        """Counts and age."""
        oldest_s = now_s
        for owed in (*self._under_way.values(), *islice(self._waiting.values(), 1)):
            oldest_s = min(oldest_s, owed.since_s)
        return Backlog(users=len(self._owed), resting=len(self._resting), oldest_s=now_s - oldest_s)

    def _try_again(self, owed: Owed, now_s: float) -> None:
        owed.sent, owed.failures = 0, 0
        self._wait(owed, now_s)

    def _wait(self, owed: Owed, until_s: float) -> None:
        self._leave(owed.key)
        owed.due_s = until_s
        self._under_way[owed.key] = owed

    def _leave(self, key: Key) -> None:
        for group in (self._waiting, self._under_way, self._poisoned, self._resting):
            group.pop(key, None)


def _key(mark: DirtyMark) -> Key:
    return mark.user_id, mark.bundle_version


def _is_news(mark: DirtyMark, owed: Owed | None) -> bool:
    return owed is None or owed.boundary != mark.lifecycle_boundary
