"""Where recent, mid-term and lifecycle begin: the one segment rule, used by the fold and by training."""

from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from state.errors import ConfigError

IntOrArray = TypeVar("IntOrArray", int, npt.NDArray[np.int64])


@dataclass(frozen=True, kw_only=True)
class HistoryConfig:
    """How a history is cut and kept. Lengths count interactions.

    Raises ConfigError when the lengths do not fit together.
    """

    recent_len: int = 256
    """The newest interactions: the recent segment."""
    mid_term_len: int = 5_000
    """Recent and mid-term together; everything older is lifecycle, once it fills a chunk."""
    chunk_len: int = 256
    """Interactions per sealed chunk; the lifecycle boundary moves by whole chunks."""
    max_history: int = 100_000
    """Interactions kept per user; the oldest chunks leave first."""
    late: Literal["store", "drop"] = "store"
    """What happens to an interaction older than the newest sealed one: kept at the oldest open place, or dropped."""

    def __post_init__(self) -> None:
        """Check that the lengths fit together."""
        if self.recent_len < 1 or self.chunk_len < 1:
            raise ConfigError(
                f"recent_len is {self.recent_len} and chunk_len {self.chunk_len}; both must be at least 1"
            )
        if self.mid_term_len < self.seal_len:
            raise ConfigError(
                f"mid_term_len is {self.mid_term_len}; it must be at least recent_len + chunk_len = {self.seal_len}"
            )
        if self.max_history < self.mid_term_len + self.chunk_len:
            raise ConfigError(
                f"max_history is {self.max_history}; it must be at least "
                f"mid_term_len + chunk_len = {self.mid_term_len + self.chunk_len}"
            )
        if self.late not in ("store", "drop"):
            raise ConfigError(f"late is {self.late!r}; it must be 'store' or 'drop'")

    @property
    def seal_len(self) -> int:
        """Tail length at which its oldest chunk is sealed; the recent segment always stays in the tail."""
        return self.recent_len + self.chunk_len

    def lifecycle_boundary(self, length: int) -> int:
        """Position where the mid-term segment starts, for a history of `length` interactions."""
        return max(0, length - self.mid_term_len) // self.chunk_len * self.chunk_len

    def tail_start(self, length: int) -> int:
        """Position where the tail starts, for a history of `length` interactions."""
        return max(0, length - self.recent_len) // self.chunk_len * self.chunk_len

    def next_move(self, lifecycle_boundary: IntOrArray) -> IntOrArray:
        """Length at which the lifecycle boundary will leave where it stands."""
        return lifecycle_boundary + (self.mid_term_len + self.chunk_len)

    def next_eviction(self, first_position: IntOrArray) -> IntOrArray:
        """Length at which the oldest kept chunk will leave the history."""
        return first_position + (self.max_history + 1)

    def recent_start(self, length: int) -> int:
        """Position where the recent segment starts."""
        return max(0, length - self.recent_len)

    def first_position(self, length: int) -> int:
        """Position of the oldest interaction that is kept."""
        excess = max(0, length - self.max_history)
        return -(-excess // self.chunk_len) * self.chunk_len
