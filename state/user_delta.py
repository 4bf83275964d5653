"""What changed of a user since a reader last looked, and how a reader adds it to what it has."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from state.chunk_codec import decode_rows
from state.errors import StaleDelta
from state.interaction import Rows, empty_rows, join_rows
from state.segments import HistoryConfig
from state.summary import Summary
from state.user_state import StoredUser, UserMeta, UserState


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a reader has of a user. Nothing of it is taken on trust: where it does not fit, the answer is everything."""

    epoch: int
    hole_end: int
    """As in UserDelta."""
    version: int
    lifecycle_boundary: int
    sealed_end: int
    """The reader has the chunks of [lifecycle_boundary, sealed_end)."""
    summary_boundary: int
    """Of the summary for the bundle version that is asked for; 0: it has none."""

    def first_missing(self, meta: UserMeta) -> int:
        """Position of the first chunk that the reader lacks; chunks never change within an epoch."""
        if self.version == meta.version:
            return meta.tail_start
        if self.lifecycle_boundary > meta.lifecycle_boundary:
            return (
                meta.lifecycle_boundary
            )  # it looked at a newer state: of a node that is further on
        return min(max(self.sealed_end, meta.lifecycle_boundary), meta.tail_start)

    def has(self, summary: Summary | None) -> bool:
        """Whether the reader has this very summary."""
        return summary is not None and summary.boundary == self.summary_boundary


@dataclass(frozen=True, kw_only=True)
class UserDelta:
    """One moment of a user, without what the reader said it knows."""

    user_id: str
    meta: UserMeta
    hole_end: int = 0
    """End of the newest hole in the partition's log; positions under another one do not compare."""
    history_unchanged: bool = False
    """The version is the known one: chunks and tail are left out."""
    chunks: Mapping[int, Rows] = field(default_factory=dict)
    """By first position, ascending: those the reader lacks, without gaps up to `meta.tail_start`."""
    tail: Rows = field(default_factory=empty_rows)
    """The newest interactions, whole; empty where the history is unchanged."""
    summary: Summary | None = None
    """For the bundle version asked for, without accumulators; None: there is none, or it is unchanged."""
    summary_unchanged: bool = False

    @property
    def unchanged(self) -> bool:
        """Whether the reader's copy, if it has a summary, is up to date as it is."""
        return self.history_unchanged and self.summary is None


@dataclass(frozen=True, kw_only=True)
class UserSegments:
    """A reader's copy of one user: what a full read gives, chunk by chunk."""

    user_id: str
    meta: UserMeta
    hole_end: int
    chunks: Mapping[int, Rows]
    """By first position, ascending: [lifecycle_boundary, tail_start)."""
    tail: Rows
    summary: Summary | None

    @property
    def known(self) -> Known:
        """What to ask for a delta with."""
        return Known(
            epoch=self.meta.epoch,
            hole_end=self.hole_end,
            version=self.meta.version,
            lifecycle_boundary=self.meta.lifecycle_boundary,
            sealed_end=self.meta.tail_start,
            summary_boundary=self.summary.boundary if self.summary else 0,
        )

    @property
    def state(self) -> UserState:
        """As one array of rows."""
        rows = join_rows([*self.chunks.values(), self.tail])
        return UserState(self.user_id, self.meta, rows, self.summary)


def split_state(state: UserState, history: HistoryConfig) -> UserSegments:
    """A whole state as a reader's copy."""
    meta, chunk_len = state.meta, history.chunk_len
    num_sealed = meta.tail_start - meta.lifecycle_boundary
    starts = range(0, num_sealed, chunk_len)
    return UserSegments(
        user_id=state.user_id,
        meta=meta,
        hole_end=0,
        chunks={meta.lifecycle_boundary + i: state.rows[i : i + chunk_len] for i in starts},
        tail=state.rows[num_sealed:],
        summary=state.summary,
    )


def decode_delta(user_id: str, stored: StoredUser) -> UserDelta:
    """Rows instead of bytes. Raises CorruptValue or UnknownFormat."""
    blocks = [decode_rows(chunk) for chunk in stored.chunks]
    position = stored.meta.tail_start - sum(map(len, blocks))
    chunks: dict[int, Rows] = {}
    for rows in blocks:
        chunks[position] = rows
        position += len(rows)
    return UserDelta(
        user_id=user_id,
        meta=stored.meta,
        hole_end=stored.hole_end,
        history_unchanged=stored.history_unchanged,
        chunks=chunks,
        tail=join_rows(map(decode_rows, stored.tail)),
        summary=stored.summary,
        summary_unchanged=stored.summary_unchanged,
    )


def apply_delta(previous: UserSegments | None, delta: UserDelta) -> UserSegments:
    """What a full read at the delta's moment would give. `previous` is what the delta was asked for with.

    Raises StaleDelta where the delta leaves out what `previous` does not have.
    """
    if delta.history_unchanged:
        previous = _comparable(previous, delta)
        chunks, tail = previous.chunks, previous.tail
    else:
        chunks, tail = {**_kept(previous, delta), **delta.chunks}, delta.tail
    summary = delta.summary
    if delta.summary_unchanged:
        summary = _comparable(previous, delta).summary
        if summary is None:
            raise StaleDelta(f"the summary of user {delta.user_id!r} is not here; read it whole")
    return UserSegments(
        user_id=delta.user_id,
        meta=delta.meta,
        hole_end=delta.hole_end,
        chunks=chunks,
        tail=tail,
        summary=summary,
    )


def _kept(previous: UserSegments | None, delta: UserDelta) -> dict[int, Rows]:
    """The previous chunks that the delta goes on from: [lifecycle_boundary, first chunk of the delta)."""
    begin, end = delta.meta.lifecycle_boundary, min(delta.chunks, default=delta.meta.tail_start)
    if begin == end:
        return {}
    chunks = _comparable(previous, delta).chunks
    kept = {position: rows for position, rows in chunks.items() if begin <= position < end}
    if sum(map(len, kept.values())) != end - begin:
        raise StaleDelta(
            f"user {delta.user_id!r}: the delta begins at position {end}, the lifecycle boundary is {begin}, and "
            f"{len(kept)} chunks between them are here; read the user whole"
        )
    return kept


def _comparable(previous: UserSegments | None, delta: UserDelta) -> UserSegments:
    if (
        previous is None
        or previous.meta.epoch != delta.meta.epoch
        or previous.hole_end != delta.hole_end
    ):
        raise StaleDelta(
            f"user {delta.user_id!r}: the delta is not for what is here (another epoch, or nothing); read the user whole"
        )
    return previous
