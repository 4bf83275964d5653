"""Between the state's own types and the wire messages of protos/state.proto."""

import numpy as np

from protos import state_pb2
from services.errors import InvalidRequest
from state.seen_items import KnownSeen, SeenItems
from state.summary import Summary
from state.user_delta import Known
from state.user_state import Rolled, StoredUser, UserMeta

_META_FIELDS = (
    "version",
    "length",
    "first_position",
    "lifecycle_boundary",
    "tail_start",
    "newest_event_time_ms",
    "epoch",
)


def meta_to_wire(meta: UserMeta) -> state_pb2.UserMeta:
    """UserMeta as a message."""
    return state_pb2.UserMeta(**{name: getattr(meta, name) for name in _META_FIELDS})


def meta_from_wire(message: state_pb2.UserMeta) -> UserMeta:
    """Inverse of meta_to_wire; what only the owner needs is left at its default."""
    return UserMeta(**{name: getattr(message, name) for name in _META_FIELDS})


def summary_to_wire(summary: Summary, *, with_accumulators: bool) -> state_pb2.Summary:
    """Summary as a message; requests need tokens and statistics alone."""
    return state_pb2.Summary(
        bundle_version=summary.bundle_version,
        boundary=summary.boundary,
        count=summary.count,
        accumulators=summary.accumulators if with_accumulators else b"",
        num_tokens=len(summary.tokens),
        tokens=summary.tokens.astype("<f4").tobytes(),
        built_at_ms=summary.built_at_ms,
        item_statistics=summary.item_statistics,
    )


def summary_from_wire(message: state_pb2.Summary) -> Summary:
    """Inverse of summary_to_wire. Raises InvalidRequest when the tokens do not have the shape they claim."""
    if len(message.tokens) % (4 * max(1, message.num_tokens)):
        raise InvalidRequest(
            f"summary.tokens has {len(message.tokens)} bytes, not {message.num_tokens} rows of float32"
        )
    tokens = np.frombuffer(message.tokens, "<f4").astype(np.float32)
    width = len(tokens) // max(1, message.num_tokens)
    return Summary(
        bundle_version=message.bundle_version,
        boundary=message.boundary,
        count=message.count,
        accumulators=message.accumulators,
        tokens=tokens.reshape(message.num_tokens, width),
        built_at_ms=message.built_at_ms,
        item_statistics=message.item_statistics,
    )


def known_to_wire(known: Known) -> state_pb2.KnownState:
    """Known as a message."""
    return state_pb2.KnownState(
        epoch=known.epoch,
        hole_end_offset=known.hole_end,
        version=known.version,
        lifecycle_boundary=known.lifecycle_boundary,
        sealed_end=known.sealed_end,
        summary_boundary=known.summary_boundary,
    )


def known_from_wire(message: state_pb2.KnownState) -> Known:
    """Inverse of known_to_wire."""
    return Known(
        epoch=message.epoch,
        hole_end=message.hole_end_offset,
        version=message.version,
        lifecycle_boundary=message.lifecycle_boundary,
        sealed_end=message.sealed_end,
        summary_boundary=message.summary_boundary,
    )


def seen_to_wire(seen: SeenItems) -> state_pb2.SeenItems:
    """SeenItems as a message."""
    return state_pb2.SeenItems(
        epoch=seen.epoch,
        hole_end_offset=seen.hole_end,
        first_position=seen.first_position,
        start=seen.start,
        end=seen.end,
        item_id_deltas=np.diff(seen.item_ids, prepend=np.uint64(0)).tolist(),
    )


def seen_from_wire(message: state_pb2.SeenItems) -> SeenItems:
    """Inverse of seen_to_wire."""
    return SeenItems(
        epoch=message.epoch,
        hole_end=message.hole_end_offset,
        first_position=message.first_position,
        start=message.start,
        end=message.end,
        item_ids=np.cumsum(np.array(message.item_id_deltas, np.uint64), dtype=np.uint64),
    )


def known_seen_to_wire(known: KnownSeen) -> state_pb2.KnownSeen:
    """KnownSeen as a message."""
    return state_pb2.KnownSeen(epoch=known.epoch, hole_end_offset=known.hole_end, end=known.end)


def known_seen_from_wire(message: state_pb2.KnownSeen) -> KnownSeen:
    """Inverse of known_seen_to_wire."""
    return KnownSeen(epoch=message.epoch, hole_end=message.hole_end_offset, end=message.end)


def user_to_wire(stored: StoredUser) -> state_pb2.UserState:
    """StoredUser as a message."""
    message = state_pb2.UserState(
        meta=meta_to_wire(stored.meta),
        chunks=stored.chunks,
        tail=stored.tail,
        history_unchanged=stored.history_unchanged,
        summary_unchanged=stored.summary_unchanged,
        hole_end_offset=stored.hole_end,
    )
    if stored.summary is not None:
        message.summary.CopyFrom(summary_to_wire(stored.summary, with_accumulators=False))
    return message


def user_from_wire(message: state_pb2.UserState) -> StoredUser:
    """Inverse of user_to_wire."""
    summary = summary_from_wire(message.summary) if message.HasField("summary") else None
    return StoredUser(
        meta_from_wire(message.meta),
        list(message.chunks),
        list(message.tail),
        summary,
        message.hole_end_offset,
        history_unchanged=message.history_unchanged,
        summary_unchanged=message.summary_unchanged,
    )


def rolled_to_wire(rolled: Rolled) -> state_pb2.Rolled:
    """Rolled as a message."""
    message = state_pb2.Rolled(
        chunks=rolled.chunks,
        end_boundary=rolled.end_boundary,
        lifecycle_boundary=rolled.lifecycle_boundary,
        epoch=rolled.epoch,
    )
    if rolled.summary is not None:
        message.summary.CopyFrom(summary_to_wire(rolled.summary, with_accumulators=True))
    return message


def rolled_from_wire(message: state_pb2.Rolled) -> Rolled:
    """Inverse of rolled_to_wire."""
    summary = summary_from_wire(message.summary) if message.HasField("summary") else None
    return Rolled(
        summary,
        list(message.chunks),
        message.end_boundary,
        message.lifecycle_boundary,
        message.epoch,
    )
