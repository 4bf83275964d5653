"""How far each partition was applied, how far its log goes, and since when neither has been so."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

KNOWN_FOR_S = 10.0
"""An end of the log that was heard longer ago says nothing about now."""


@dataclass(frozen=True)
class PartitionProgress:
    """One partition at one moment; None where something is not known."""

    next_offset: int | None = None
    """The first offset not applied yet; behind a transaction's marker, which is no record."""
    end_offset: int | None = None
    """Of what can be read now: an open transaction lies behind it."""
    lag_records: int | None = None
    lag_s: float | None = None
    """How long the oldest record that was not applied has waited at most; 0 when there is none."""


@dataclass
class _Partition:
    next_offset: int | None = None
    timestamp_ms: int | None = None
    """Of the last record applied."""
    end_offset: int | None = None
    caught_up_s: float | None = None
    """When nothing was left to apply, as far as is known."""
    moved_s: float = 0.0
    """When something was applied, or there was nothing to apply."""
    is_open: bool = False
    """Under the present assignment."""

    def look(self, heard_s: float) -> None:
        """The end of the log was heard at `heard_s`, or the position moved since."""
        if self.next_offset is None or self.end_offset is None:
            return
        if self.next_offset >= self.end_offset:
            self.caught_up_s = heard_s
            self.moved_s = max(self.moved_s, heard_s)


class Progress:
    """Written on the event loop, read from any thread. Seconds are of `clock`, which never jumps."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Nothing assigned. `wall_clock` (seconds since the epoch) is held against the records' timestamps."""
        self.now_s = clock
        self._wall_clock = wall_clock
        self._partitions: dict[int, _Partition] = {}
        self._heard_s: float | None = None
        self._reachable_since_s = clock()
        self._unopened_since_s = clock()
        self._rebalancing_since_s: float | None = None

    def revoked(self) -> None:
        """A rebalance began: nothing moves before it ends."""
        self._rebalancing_since_s = self.now_s()

    def assigned(self, partitions: Iterable[int]) -> None:
        """A rebalance ended."""
        now_s = self.now_s()
        self._partitions = {
            partition: self._partitions.get(partition, _Partition()) for partition in partitions
        }
        for partition in self._partitions.values():
            partition.is_open = False
        self._rebalancing_since_s, self._unopened_since_s = None, now_s

    def opened(self, partition: int, next_offset: int) -> None:
        """The store of a partition is open and stands at `next_offset`."""
        if (known := self._partitions.get(partition)) is not None:
            known.next_offset, known.is_open = next_offset, True
            known.moved_s = self._unopened_since_s = self.now_s()

    def applied(self, positions: Mapping[int, int], timestamps_ms: Mapping[int, int]) -> None:
        """Everything before `positions` is in the stores and flushed; `timestamps_ms` are those of the last records."""
        now_s = self.now_s()
        for number, position in positions.items():
            partition = self._partitions.get(number)
            if partition is None:
                continue
            if partition.next_offset != position:
                partition.next_offset, partition.moved_s = position, now_s
            partition.timestamp_ms = timestamps_ms.get(number, partition.timestamp_ms)
            if self._heard_s is not None:
                partition.look(self._heard_s)

    def heard(self, end_offsets: Mapping[int, int], asked_s: float) -> None:
        """The broker, asked at `asked_s`, said where the logs end."""
        if not self.is_broker_reachable():
            self._reachable_since_s = self.now_s()
        self._heard_s = asked_s
        for number, end_offset in end_offsets.items():
            if (partition := self._partitions.get(number)) is not None:
                partition.end_offset = end_offset
                partition.look(asked_s)

    def is_broker_reachable(self) -> bool:
        """Whether it said lately where the logs end."""
        return self.silent_s() <= KNOWN_FOR_S

    def silent_s(self) -> float:
        """Seconds since the broker last said where the logs end; infinite before it did."""
        return float("inf") if self._heard_s is None else self.now_s() - self._heard_s

    def rebalancing_s(self) -> float | None:
        """Seconds since a rebalance began; None when there is none."""
        since_s = self._rebalancing_since_s
        return None if since_s is None else self.now_s() - since_s

    def unopened_s(self) -> float:
        """Seconds since partitions were assigned or the last one was opened."""
        return self.now_s() - self._unopened_since_s

    def unopened(self) -> list[int]:
        """The assigned partitions whose stores are still to be restored and opened."""
        return sorted(number for number, known in self._partitions.items() if not known.is_open)

    def standing_s(self) -> dict[int, float]:
        """Seconds in which a reachable broker had records and none was applied, of each open partition."""
        now_s = self.now_s()
        return {
            number: now_s - max(known.moved_s, self._reachable_since_s)
            for number, known in sorted(self._partitions.items())
            if known.is_open and known.end_offset is not None
        }

    def partitions(self) -> list[int]:
        """The assigned partitions."""
        return sorted(self._partitions)

    def of(self, partition: int) -> PartitionProgress:
        """Where a partition stands; nothing is known of one that is not assigned."""
        known = self._partitions.get(partition, _Partition())
        end_offset = known.end_offset if self.is_broker_reachable() else None
        if known.next_offset is None or end_offset is None:
            return PartitionProgress(known.next_offset, end_offset)
        lag_records = max(0, end_offset - known.next_offset)
        return PartitionProgress(
            known.next_offset, end_offset, lag_records, self._lag_s(known) if lag_records else 0.0
        )

    def _lag_s(self, partition: _Partition) -> float | None:
        """The oldest record that waits is younger than the last one applied, and than the time when none waited."""
        bounds = []
        if partition.timestamp_ms is not None:
            bounds.append(self._wall_clock() - partition.timestamp_ms / 1_000)
        if partition.caught_up_s is not None:
            bounds.append(self.now_s() - partition.caught_up_s)
        return max(0.0, min(bounds)) if bounds else None
