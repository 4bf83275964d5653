"""Whether the node is alive: not that a port is open, but that what can be applied is applied."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from state.errors import ConfigError
from stream.errors import StreamError
from stream.progress import Progress

log = logging.getLogger(__name__)

_ASK_EVERY_S = 1.0
_ASK_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class LivenessConfig:
    """How long a node may stand still before it counts as dead."""

    stall_after_s: float = 60.0
    """Of a partition that has records to apply; of an inference node's network at one batch."""
    opening_stall_after_s: float = 1_800.0
    """Of a rebalance, or of partitions none of which was opened: a restore takes its time."""

    def __post_init__(self) -> None:
        """Check the limits."""
        if not 0 < self.stall_after_s <= self.opening_stall_after_s:
            raise ConfigError(
                f"stall_after_s is {self.stall_after_s}; it must be above 0 and at most opening_stall_after_s "
                f"({self.opening_stall_after_s})"
            )


@dataclass(frozen=True)
class Verdict:
    """Alive or not, and why, in one line."""

    alive: bool
    reason: str


class Watchdog:
    """Asks the broker where the logs end, and judges by memory alone: a store that hangs does not hold it up."""

    def __init__(
        self,
        progress: Progress,
        ask_end_offsets: Callable[[], Awaitable[Mapping[int, int]]],
        config: LivenessConfig,
    ) -> None:
        """`ask_end_offsets` of the assigned partitions; raises StreamError when the broker does not say."""
        self._progress = progress
        self._ask_end_offsets = ask_end_offsets
        self._config = config
        self._turned_s: float | None = None

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            self._turned_s = asked_s = self._progress.now_s()
            try:
                async with asyncio.timeout(_ASK_TIMEOUT_S):
                    if end_offsets := await self._ask_end_offsets():
                        self._progress.heard(end_offsets, asked_s)
            except (StreamError, TimeoutError) as error:
                log.debug("the broker does not say where the logs end: %r", error)
            await asyncio.sleep(_ASK_EVERY_S)

    def verdict(self) -> Verdict:
        """As of now; from any thread."""
        if (standing := self._loop_stands()) is not None:
            return Verdict(False, f"stalled: {standing}")
        progress, num_partitions = self._progress, len(self._progress.partitions())
        if num_partitions and not progress.is_broker_reachable():
            return Verdict(True, _unreachable(progress.silent_s()))
        if (standing := self._group_stands() or self._partition_stands()) is not None:
            return Verdict(False, f"stalled: {standing}")
        return Verdict(True, f"alive: {num_partitions} partitions")

    def _loop_stands(self) -> str | None:
        if self._turned_s is None:
            return None
        turned_s = self._progress.now_s() - self._turned_s
        if turned_s <= self._config.stall_after_s + _ASK_TIMEOUT_S:
            return None
        return f"the event loop has not turned for {turned_s:.0f} s"

    def _group_stands(self) -> str | None:
        longest_s = self._config.opening_stall_after_s
        rebalancing_s = self._progress.rebalancing_s()
        if rebalancing_s is not None and rebalancing_s > longest_s:
            return f"the group has been rebalancing for {rebalancing_s:.0f} s"
        unopened, unopened_s = self._progress.unopened(), self._progress.unopened_s()
        if unopened and unopened_s > longest_s:
            return f"partition {unopened[0]} has been opening for {unopened_s:.0f} s"
        return None

    def _partition_stands(self) -> str | None:
        if self._progress.rebalancing_s() is not None:
            return None
        for partition, standing_s in self._progress.standing_s().items():
            if standing_s > self._config.stall_after_s:
                where = self._progress.of(partition)
                return (
                    f"partition {partition} has stood at offset {where.next_offset} of {where.end_offset} for "
                    f"{standing_s:.0f} s"
                )
        return None


def _unreachable(silent_s: float) -> str:
    since = "yet" if math.isinf(silent_s) else f"for {silent_s:.0f} s"
    return f"alive, but Kafka has not answered {since}: a restart does not help"
