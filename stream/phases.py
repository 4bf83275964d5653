"""How far each assigned partition is on its way to being served."""

from collections.abc import Iterable, Mapping
from enum import StrEnum


class Phase(StrEnum):
    """A partition's way: its store is restored and opened, the log is read up to its end at that time, and it serves."""

    OPENING = "opening"
    CATCHING_UP = "catching-up"
    READY = "ready"


class Phases:
    """The phases of the partitions of one node."""

    def __init__(self) -> None:
        """No partitions."""
        self._phases: dict[int, Phase] = {}
        self._goals: dict[int, int] = {}

    def assign(self, partitions: Iterable[int]) -> None:
        """A new assignment. A partition that stays keeps serving what it has while its position is looked up."""
        ready = self.in_phase(Phase.READY)
        self._phases = {
            partition: Phase.READY if partition in ready else Phase.OPENING
            for partition in partitions
        }
        self._goals = {}

    def opened(self, partition: int, end_offset: int) -> None:
        """The store is open; the topic ended at `end_offset` when the partition was assigned."""
        self._goals[partition] = end_offset
        if self._phases.get(partition) is Phase.OPENING:
            self._phases[partition] = Phase.CATCHING_UP

    def applied(self, positions: Mapping[int, int]) -> None:
        """Everything before these offsets is in the store."""
        for partition, position in positions.items():
            if position >= self._goals.get(partition, position + 1):
                self._phases[partition] = Phase.READY

    def in_phase(self, phase: Phase) -> set[int]:
        """The partitions that are in `phase`."""
        return {partition for partition, now in self._phases.items() if now is phase}

    def all(self) -> dict[int, Phase]:
        """Every assigned partition with its phase."""
        return dict(self._phases)

    def all_ready(self) -> bool:
        """Whether nothing that is assigned is on its way; false before the first assignment."""
        return all(phase is Phase.READY for phase in self._phases.values())
