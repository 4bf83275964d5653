"""What one poll brought for one partition, and what became of it."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from state.errors import CorruptValue
from state.interaction import Rows

_POSITION_BYTES = 16


@dataclass(frozen=True)
class Position:
    """How far a partition was applied."""

    next_offset: int
    fingerprint: int
    """64 bits of the record before `next_offset`: another one there means another topic."""

    def encode(self) -> bytes:
        """16 bytes."""
        return struct.pack(">QQ", self.next_offset, self.fingerprint)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of encode. Raises CorruptValue."""
        if len(data) != _POSITION_BYTES:
            raise CorruptValue(
                f"a partition's position has {len(data)} bytes, not {_POSITION_BYTES}"
            )
        return cls(*struct.unpack(">QQ", data))


@dataclass(frozen=True)
class Deletion:
    """A user asks to be forgotten, with everything that happened until then."""

    user_id: str
    offset: int
    until_ms: int
    """Event time up to which later arrivals are refused, too."""


@dataclass(frozen=True)
class Arrivals:
    """Interactions and deletions of one partition in offset order.

    `position` lies behind everything read, be it an interaction, a dead letter or a gap.
    """

    partition: int
    position: Position
    user_ids: Sequence[str]
    """The user of each row."""
    offsets: npt.NDArray[np.int64]
    rows: Rows
    deletions: Sequence[Deletion] = ()


@dataclass
class Applied:
    """Counts of one or many applications, and who moved."""

    interactions: int = 0
    duplicates: int = 0
    late: int = 0
    refused: int = 0
    """Interactions of a past that their user had deleted."""
    deletions: int = 0
    replayed: int = 0
    """Interactions at offsets that the store had applied before."""
    sealed_chunks: int = 0
    evicted_chunks: int = 0
    moved_users: list[tuple[int, str]] = field(default_factory=list)
    """(partition, user id) of every user whose lifecycle boundary moved."""

    def counts(self) -> dict[str, int]:
        """The counts by name."""
        counts = {name: value for name, value in vars(self).items() if isinstance(value, int)}
        counts["boundary_moves"] = len(self.moved_users)
        return counts
