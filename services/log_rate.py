"""Warnings that every request may give, once a second: an outage must not fill the disk with them."""

import logging
import time
from collections import Counter
from collections.abc import Callable

PER_REQUEST = ("services.generation", "services.seen_items", "services.recommender_service")
"""Loggers whose warnings come with requests; metrics count these."""
_INTERVAL_S = 1.0


class OncePerSecond(logging.Filter):
    """Of each message, whatever its arguments, one record in a second; it says how many were left out before."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """Nothing is left out yet."""
        super().__init__()
        self._now_s = now_s
        self._next_s: dict[str, float] = {}
        self._left_out: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Errors always pass."""
        if record.levelno > logging.WARNING:
            return True
        message, now_s = str(record.msg), self._now_s()
        if now_s < self._next_s.get(message, now_s):
            self._left_out[message] += 1
            return False
        self._next_s[message] = now_s + _INTERVAL_S
        if left_out := self._left_out.pop(message, 0):
            record.msg = f"{record.getMessage()} (and {left_out} like it)"
            record.args = None
        return True


def limit_request_warnings() -> None:
    """For a process that serves requests."""
    for name in PER_REQUEST:
        logging.getLogger(name).addFilter(OncePerSecond())
