"""Answers of an inference node by the role of the bundle that gave them."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from services.traffic_split import Role
from stream.histogram import Histogram


class AnswerStats:
    """Since the process started; roles keep their counts when bundles change."""

    def __init__(self) -> None:
        """No answers."""
        self.answers: Counter[tuple[Role, str]] = Counter()
        """By role and name of the status."""
        self.degraded: Counter[tuple[Role, str]] = Counter()
        """By role and kind of degradation; an answer may have several."""
        self.seconds: defaultdict[Role, Histogram] = defaultdict(Histogram)
        """By role, of answers that came to be."""

    def count(self, role: Role, status: str, seconds: float, degraded: Iterable[str] = ()) -> None:
        """One request has its answer, or failed."""
        self.answers[role, status] += 1
        self.degraded.update((role, kind) for kind in degraded)
        if status == "OK":
            self.seconds[role].observe(seconds)
