"""A server that said nothing in time is not waited for again at once: calls to it fail until one, tried later, is answered."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from services.errors import TimedOut, Unreachable

RETRY_AFTER_S = 1.0
"""Then one call is let through, to see; the others still fail."""
MIN_WAIT_S = 0.1
"""A call that waited less than this says nothing of the server, only of its caller's haste."""


class CircuitBreaker:
    """Of one address, on one event loop."""

    def __init__(self, address: str, retry_after_s: float = RETRY_AFTER_S) -> None:
        """Closed: calls go through."""
        self._address = address
        self._retry_after_s = retry_after_s
        self._retry_at_s: float | None = None
        """As time.monotonic; None: closed."""
        self._is_trying = False
        self._answered_s = 0.0

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around a call that raises TimedOut where nothing is answered; any other end is an answer.

        Raises Unreachable at once while the server is not to be waited for.
        """
        started_s = time.monotonic()
        is_trial = self._retry_at_s is not None
        if self._retry_at_s is not None and (self._is_trying or started_s < self._retry_at_s):
            raise Unreachable(
                f"{self._address} has just said nothing in time; it is asked again every {self._retry_after_s:g} s"
            )
        self._is_trying = is_trial
        try:
            yield
        except TimedOut:
            self._timed_out(started_s)
            raise
        except Exception:
            self._answered()
            raise
        else:
            self._answered()
        finally:
            if is_trial:
                self._is_trying = False

    def _timed_out(self, started_s: float) -> None:
        """Where others were answered meanwhile, the server is slow, not silent."""
        now_s = time.monotonic()
        if now_s - started_s >= MIN_WAIT_S and self._answered_s < started_s:
            self._retry_at_s = now_s + self._retry_after_s

    def _answered(self) -> None:
        self._answered_s = time.monotonic()
        self._retry_at_s = None
