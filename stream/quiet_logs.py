"""Keep aiokafka from flooding the log: a broker that is away costs it hundreds of lines a second."""

import logging
import time
from dataclasses import dataclass

LINES = 3
PERIOD_S = 10.0


@dataclass
class _Window:
    ends_at: float = 0.0
    let_through: int = 0
    left_out: int = 0


class RateLimit(logging.Filter):
    """Lets a few lines per period through from each place in the code, and counts the others."""

    def __init__(self, lines: int = LINES, period_s: float = PERIOD_S) -> None:
        """Keep the limits; the places are learnt as they speak, so there are not many."""
        super().__init__()
        self._lines = lines
        self._period_s = period_s
        self._windows: dict[tuple[str, int], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to let the line through; the first of a period tells how many were left out."""
        window = self._windows.setdefault((record.pathname, record.lineno), _Window())
        now = time.monotonic()
        if now >= window.ends_at:
            if window.left_out:
                record.msg = f"{record.msg} ({window.left_out} such lines left out before)"
            window.ends_at = now + self._period_s
            window.let_through = window.left_out = 0
        if window.let_through < self._lines:
            window.let_through += 1
            return True
        window.left_out += 1
        return False


def coordinator_is_not_missing(record: logging.LogRecord) -> bool:
    """Whether a line is anything but "no group coordinator yet".

    The first group ever makes the broker create its offsets topic; until that is done it answers so, aiokafka asks
    again, and nothing is wrong.
    """
    return not (
        record.msg == "Group Coordinator Request failed: %s"
        and "GroupCoordinatorNotAvailableError" in record.getMessage()
    )


def quieten_aiokafka() -> None:
    """Limit every logger aiokafka has; calling it again changes nothing. Import aiokafka first."""
    # Filters of a logger do not see the records of its children: each gets the filter.
    for name in list(logging.root.manager.loggerDict):
        logger = logging.getLogger(name)
        if name.partition(".")[0] == "aiokafka" and not any(
            isinstance(each, RateLimit) for each in logger.filters
        ):
            logger.addFilter(coordinator_is_not_missing)
            logger.addFilter(RateLimit())
