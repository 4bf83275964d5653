"""How far behind, and whether alive: on clocks that the test turns."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest

from state.errors import ConfigError
from stream.errors import StreamError
from stream.histogram import Histogram
from stream.progress import KNOWN_FOR_S, PartitionProgress, Progress
from stream.watchdog import LivenessConfig, Watchdog

NOON_S = 1_700_000_000.0
NOTHING = PartitionProgress()


class World:
    """One node with partition 0 open at offset 10, on a broker that says what the test wants."""

    def __init__(self, open_partition: bool = True) -> None:
        self.now_s = 1_000.0
        self.progress = Progress(lambda: self.now_s, lambda: NOON_S + self.now_s)
        self.watchdog = Watchdog(
            self.progress, self.ask, LivenessConfig(stall_after_s=60, opening_stall_after_s=600)
        )
        self.progress.assigned([0])
        if open_partition:
            self.progress.opened(0, 10)

    async def ask(self) -> Mapping[int, int]:
        return {}

    def heard(self, end_offset: int) -> None:
        self.progress.heard({0: end_offset}, self.now_s)

    def apply(self, position: int, age_s: float) -> None:
        """Up to `position`; the last record is that old."""
        timestamp_ms = round((NOON_S + self.now_s - age_s) * 1_000)
        self.progress.applied({0: position}, {0: timestamp_ms})

    def wait(self, seconds: float, end_offset: int | None) -> None:
        """The broker goes on saying where the log ends, or says nothing."""
        for _ in range(round(seconds)):
            self.now_s += 1
            if end_offset is not None:
                self.heard(end_offset)

    def lag(self) -> tuple[int | None, float | None]:
        where = self.progress.of(0)
        return where.lag_records, where.lag_s

    @property
    def alive(self) -> bool:
        return self.watchdog.verdict().alive


def test_lag_is_unknown_before_the_broker_spoke_and_zero_only_when_caught_up() -> None:
    world = World()
    assert world.progress.of(0) == PartitionProgress(next_offset=10)
    assert world.progress.of(1) == NOTHING
    world.heard(25)
    assert world.lag() == (15, None)  # how old the records are is not known before one was read
    world.apply(20, age_s=40)
    assert world.lag() == (5, 40)
    world.apply(25, age_s=1)
    assert world.lag() == (0, 0)


def test_a_record_in_an_idle_partition_is_as_late_as_it_can_be_not_as_its_predecessor() -> None:
    world = World()
    world.heard(25)
    world.apply(25, age_s=0)
    world.wait(3_600, 25)
    assert world.lag() == (0, 0)
    world.wait(1, 26)
    assert world.lag() == (1, 1)
    world.wait(8, 26)
    assert world.lag() == (1, 9)


def test_what_a_marker_takes_is_not_behind() -> None:
    world = World()
    world.heard(13)
    world.apply(13, age_s=0)  # the reading position; offset 12 was a transaction's marker
    assert world.lag() == (0, 0)


def test_a_silent_broker_makes_the_lag_unknown() -> None:
    world = World()
    world.heard(10)
    assert world.lag() == (0, 0)
    world.wait(KNOWN_FOR_S + 1, None)
    assert world.progress.of(0) == PartitionProgress(next_offset=10)
    world.heard(12)
    assert world.lag() == (2, KNOWN_FOR_S + 1)


def test_timestamps_of_the_future_make_no_negative_lag() -> None:
    world = World()
    world.heard(25)
    world.apply(20, age_s=-500)
    assert world.lag() == (5, 0)


def test_a_partition_that_stands_still_with_records_left_is_stalled() -> None:
    world = World()
    world.wait(600, 10)
    assert world.alive, "there is nothing to apply"
    world.wait(60, 12)
    assert world.alive
    world.wait(1, 12)
    assert world.watchdog.verdict().reason == (
        "stalled: partition 0 has stood at offset 10 of 12 for 61 s"
    )
    world.apply(11, age_s=0)
    assert world.alive, "one record is progress"


def test_a_broker_that_is_away_is_not_cured_by_a_restart() -> None:
    world = World()
    world.heard(12)
    world.wait(500, None)
    verdict = world.watchdog.verdict()
    assert verdict.alive
    assert verdict.reason == (
        "alive, but Kafka has not answered for 500 s: a restart does not help"
    )
    world.wait(1, 12)
    assert world.alive, "the time without a broker does not count"
    world.wait(61, 12)
    assert not world.alive


def test_opening_and_rebalancing_may_take_longer() -> None:
    world = World(open_partition=False)
    world.wait(600, 12)
    assert world.alive
    world.wait(1, 12)
    assert world.watchdog.verdict().reason == "stalled: partition 0 has been opening for 601 s"
    world.progress.opened(0, 10)
    assert world.alive
    world.progress.revoked()
    world.wait(600, 12)
    assert world.alive
    world.wait(1, 12)
    assert "rebalancing for 601 s" in world.watchdog.verdict().reason
    world.progress.assigned([0, 1])
    world.progress.opened(1, 0)
    world.wait(61, 12)
    assert world.watchdog.verdict().reason.startswith("alive"), "0 waits for its turn to be opened"


def test_a_node_without_partitions_is_alive() -> None:
    world = World()
    world.progress.assigned([])
    world.wait(10_000, None)
    assert world.watchdog.verdict().reason == "alive: 0 partitions"


async def test_the_watchdog_asks_survives_silence_and_notices_a_stuck_loop() -> None:
    world = World()
    answers: list[Callable[[], Awaitable[Mapping[int, int]]]] = []

    async def refuse() -> Mapping[int, int]:
        answers.append(tell)
        raise StreamError("no")

    async def tell() -> Mapping[int, int]:
        return {0: 17}

    async def ask() -> Mapping[int, int]:
        return await answers[-1]()

    answers.append(refuse)
    watchdog = Watchdog(world.progress, ask, LivenessConfig())
    task = asyncio.create_task(watchdog.run())
    async with asyncio.timeout(10):
        while world.progress.of(0).end_offset != 17:
            await asyncio.sleep(0.01)
    task.cancel()
    assert watchdog.verdict().alive
    world.now_s += 100
    assert watchdog.verdict().reason == "stalled: the event loop has not turned for 100 s"


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="stall_after_s is 0"):
        LivenessConfig(stall_after_s=0)
    with pytest.raises(ConfigError, match="at most opening_stall_after_s"):
        LivenessConfig(stall_after_s=10, opening_stall_after_s=5)


def test_a_histogram_counts_by_upper_bound() -> None:
    histogram = Histogram((1.0, 10.0))
    for value in (0.5, 1.0, 2.0, 11.0):
        histogram.observe(value)
    with pytest.raises(KeyError), histogram.timing():
        raise KeyError
    assert histogram.counts() == [2, 1, 1]
    assert histogram.sum == 14.5
