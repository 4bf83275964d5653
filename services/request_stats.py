"""Requests that a gRPC server answered, by method and status."""

from collections import Counter, defaultdict

from stream.histogram import Histogram


class RequestStats:
    """Since the process started. Methods are those that the server has, so there are not many."""

    def __init__(self) -> None:
        """No requests."""
        self.answered: Counter[tuple[str, str]] = Counter()
        """By method and name of the status."""
        self.seconds: defaultdict[str, Histogram] = defaultdict(Histogram)
        """By method."""

    def count(self, method: str, status: str, seconds: float) -> None:
        """One request was answered."""
        self.answered[method, status] += 1
        self.seconds[method].observe(seconds)
