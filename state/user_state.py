"""What is known of a user: meta data, and the part of the history that a request attends to."""

from dataclasses import dataclass

from state.chunk_codec import decode_rows
from state.interaction import Rows, join_rows
from state.segments import HistoryConfig
from state.summary import Summary


@dataclass(frozen=True, kw_only=True)
class UserMeta:
    """Positions and versions of one user's history.

    Positions count from the first interaction ever applied; where an item was forgotten, anew from the oldest one left.
    """

    version: int = 0
    """Grows with every change of the history: by one with each interaction applied, and with each item forgotten."""
    length: int = 0
    """Position behind the newest interaction."""
    first_position: int = 0
    """Oldest interaction still stored."""
    lifecycle_boundary: int = 0
    """The lifecycle segment is [first_position, lifecycle_boundary)."""
    tail_start: int = 0
    """Chunks cover [first_position, tail_start); the tail covers the rest."""
    newest_event_time_ms: int = 0
    sealed_event_time_ms: int = 0
    """Newest event time in any sealed chunk; what is older arrives late."""
    epoch: int = 0
    """Raised by what deletes any interaction; work begun under an older epoch is refused."""
    deleted_until_ms: int = 0
    """Interactions with an event time up to this one belong to the deleted past and are refused."""
    forgotten_until_ms: int = 0
    """Interactions with an event time up to this one may be about a forgotten item; 0 when no item is forgotten."""
    tail_blocks: int = 0
    """How many blocks the tail lies in; the only field that depends on how the log was cut into polls."""


@dataclass(frozen=True)
class UserState:
    """One moment of one user: [lifecycle_boundary, length) as rows, and the summary of what lies before."""

    user_id: str
    meta: UserMeta
    rows: Rows
    """Mid-term and recent interactions, oldest first."""
    summary: Summary | None
    """For the bundle version asked for; None when there is none yet."""

    def recent(self, history: HistoryConfig) -> Rows:
        """The newest `recent_len` interactions."""
        return self.rows[max(0, len(self.rows) - history.recent_len) :]

    def mid_term(self, history: HistoryConfig) -> Rows:
        """Interactions between the lifecycle boundary and the recent segment."""
        return self.rows[: max(0, len(self.rows) - history.recent_len)]


@dataclass(frozen=True)
class StoredUser:
    """A user as stored: encoded chunks from the lifecycle boundary on, encoded tail, summary.

    Where the reader said what it knows, that is left out.
    """

    meta: UserMeta
    chunks: list[bytes]
    tail: list[bytes]
    """Blocks, oldest first."""
    summary: Summary | None
    hole_end: int = 0
    """As in UserDelta."""
    history_unchanged: bool = False
    """No chunk and no tail: the reader has them."""
    summary_unchanged: bool = False
    """No summary: the reader has it."""

    def decode(self, user_id: str) -> UserState:
        """Rows instead of bytes, of a user that was read whole. Raises CorruptValue or UnknownFormat."""
        blocks = [decode_rows(block) for block in (*self.chunks, *self.tail)]
        return UserState(user_id, self.meta, join_rows(blocks), self.summary)


@dataclass(frozen=True)
class Rolled:
    """What the lifecycle boundary left behind since `summary`: encoded chunks up to end_boundary, oldest first."""

    summary: Summary | None
    chunks: list[bytes]
    end_boundary: int
    lifecycle_boundary: int
    epoch: int

    @property
    def base_boundary(self) -> int:
        """Where the summary to be replaced ends."""
        return self.summary.boundary if self.summary else 0
