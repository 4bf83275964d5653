"""SIGINT and SIGTERM ask a run to stop after its step; a second one stops it at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class StopRequest:
    """Which signal asked to stop; 0 = none did."""

    signal_number: int = 0


@contextmanager
def stop_requests(listens: bool) -> Iterator[StopRequest]:
    """Listen to the signals meanwhile. Outside the main thread, where Python gives no signals, nobody asks."""
    request = StopRequest()
    if not listens or threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def ask(number: int, frame: FrameType | None) -> None:
        request.signal_number = number
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in _SIGNALS:
        signal.signal(number, ask)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
