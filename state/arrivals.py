"""What one poll brought for one partition, and what became of it."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from state.errors import CorruptValue
from state.interaction import Rows

_POSITION_BYTES = 16
_HOLE_BYTES = 24


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
class Hole:
    """Records of a partition that retention removed before they were applied, accepted by an operator."""

    start_offset: int
    end_offset: int
    accepted_at_ms: int

    def encode(self) -> bytes:
        """24 bytes."""
        return struct.pack(">QQQ", self.start_offset, self.end_offset, self.accepted_at_ms)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Inverse of encode. Raises CorruptValue."""
        if len(data) != _HOLE_BYTES:
            raise CorruptValue(f"a hole has {len(data)} bytes, not {_HOLE_BYTES}")
        return cls(*struct.unpack(">QQQ", data))


@dataclass(frozen=True)
class Deletion:
    """A user asks to be forgotten, with everything that happened until then; or one item to be."""

    user_id: str
    offset: int
    until_ms: int
    """Event time up to which later arrivals are refused, too."""
    item_id: int = 0
    """The item to forget; 0 = everything."""


@dataclass(frozen=True)
class Arrivals:
    """Interactions and deletions of one partition in offset order.

    `position` lies behind everything read, be it an interaction, a dead letter or a gap.
    """

    partition: int
    position: Position
    user_keys: Sequence[bytes]
    """The user of each row, as the record's key: the user id in UTF-8."""
    offsets: npt.NDArray[np.int64]
    rows: Rows
    deletions: Sequence[Deletion] = ()


@dataclass
class Applied:
    """Counts of one or many applications."""

    interactions: int = 0
    duplicates: int = 0
    late: int = 0
    refused: int = 0
    """Interactions of a past that their user had deleted, or about an item that the user had forgotten."""
    deletions: int = 0
    forgotten: int = 0
    """Interactions that forgotten items took with them."""
    replayed: int = 0
    """Interactions at offsets that the store had applied before."""
    folds: int = 0
    """Users in a poll whose arrivals were not simply newer, so that their history was folded."""
    sealed_chunks: int = 0
    evicted_chunks: int = 0
    boundary_moves: int = 0
    """Users whose lifecycle boundary moved."""

    def add(self, other: "Applied") -> None:
        """Add the counts of another application."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def counts(self) -> dict[str, int]:
        """The counts by name."""
        return dict(vars(self))
