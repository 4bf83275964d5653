"""Whether an inference node is alive: its event loop turns, and its network ends what it has begun."""

import asyncio
import time
from collections.abc import Callable

from stream.watchdog import Verdict

_TURN_EVERY_S = 1.0


class ServingWatchdog:
    """Judges by memory alone: what hangs does not hold it up. `run` must be running, on the loop that serves."""

    def __init__(
        self,
        longest_batch_s: Callable[[], float],
        stall_after_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`longest_batch_s`: how long the network has been at what it has in hand, of all bundles; 0 with nothing."""
        self._longest_batch_s = longest_batch_s
        self._stall_after_s = stall_after_s
        self._now_s = now_s
        self._turned_s: float | None = None

    async def run(self) -> None:
        """Note that the loop turns, until cancelled."""
        while True:
            self._turned_s = self._now_s()
            await asyncio.sleep(_TURN_EVERY_S)

    def verdict(self) -> Verdict:
        """As of now; from any thread."""
        standing_s = 0.0 if self._turned_s is None else self._now_s() - self._turned_s
        if standing_s > self._stall_after_s + _TURN_EVERY_S:
            return Verdict(False, f"stalled: the event loop has not turned for {standing_s:.0f} s")
        batch_s = self._longest_batch_s()
        if batch_s > self._stall_after_s:
            return Verdict(False, f"stalled: the network has been at one batch for {batch_s:.0f} s")
        return Verdict(True, "alive")
