"""An interaction: its columns, their limits and its identity. Every other module handles whole arrays of them."""

from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from state.errors import InvalidInteraction
from state.event_hash import hash_slice, hash_slices

FEATURE_COLUMNS = (
    "item_id",
    "author_id",
    "tag",
    "event_time_ms",
    "play_time_ms",
    "duration_ms",
    "kinds",
)

INTERACTION = np.dtype(
    [
        ("item_id", "<u8"),
        ("author_id", "<u8"),
        ("tag", "<u4"),
        ("event_time_ms", "<i8"),
        ("play_time_ms", "<u4"),
        ("duration_ms", "<u4"),
        ("kinds", "<u4"),  # bit i is set when InteractionKind i applies
        ("event_hash", "<u8"),  # identity for catching producer retries; 0 in sealed chunks
    ]
)

Rows: TypeAlias = npt.NDArray[np.void]
"""A one-dimensional array of dtype INTERACTION."""

KIND_NAMES = (
    "unspecified",
    "view",
    "click",
    "like",
    "share",
    "comment",
    "follow",
    "purchase",
    "long_view",
    "dislike",
)
"""Names of protos.interaction InteractionKind, by value; the first is never set."""

NUM_KINDS = len(KIND_NAMES)
KINDS_MASK = (1 << NUM_KINDS) - 2
DISLIKE_MASK = 1 << KIND_NAMES.index("dislike")

MIN_EVENT_TIME_MS = 946_684_800_000  # 2000-01-01
MAX_EVENT_TIME_MS = 4_102_444_800_000  # 2100-01-01
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)  # splitmix64

MAX_USER_ID_BYTES = 256
MAX_EVENT_ID_BYTES = 128


def empty_rows() -> Rows:
    """No interactions."""
    return np.empty(0, INTERACTION)


def join_rows(parts: Iterable[Rows]) -> Rows:
    """One array of all rows, not to be written to. Twenty times as fast as np.concatenate, which looks at every field."""
    return np.frombuffer(b"".join([part.tobytes() for part in parts]), INTERACTION)


def are_dislikes(rows: Rows) -> npt.NDArray[np.bool_]:
    """Mask of the interactions that ask for less of their item, whatever other kinds they have."""
    return np.asarray(rows["kinds"] & np.uint32(DISLIKE_MASK) != 0)


def have_kinds(rows: Rows, names: Collection[str]) -> npt.NDArray[np.bool_]:
    """Mask of the interactions that have one of these kinds. Raises ValueError for a name that is no kind."""
    mask = sum(1 << KIND_NAMES.index(name) for name in set(names))
    return np.asarray(rows["kinds"] & np.uint32(mask) != 0)


def hash_event(event_id: str, event_time_ms: int) -> int:
    """64-bit identity of an event, never 0: the same id at another time is another event."""
    data = np.frombuffer(event_id.encode(), np.uint8)
    return int(hash_slice(data, 0, len(data), event_time_ms))


def hash_events(event_ids: Sequence[str], times_ms: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """`hash_event` of many."""
    encoded = [event_id.encode() for event_id in event_ids]
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    ends = np.cumsum(lengths)
    data = np.frombuffer(b"".join(encoded), np.uint8)
    return hash_slices(data, ends - lengths, ends, np.ascontiguousarray(times_ms, np.int64))


def hash_features(rows: Rows) -> npt.NDArray[np.uint64]:
    """64-bit identity of everything but the event id, for interactions whose event hash is no longer kept."""
    mixed = np.zeros(len(rows), np.uint64)
    for name in FEATURE_COLUMNS:
        mixed ^= rows[name].astype(np.uint64)
        mixed *= _MIX_1
        mixed ^= mixed >> np.uint64(29)
        mixed *= _MIX_2
        mixed ^= mixed >> np.uint64(32)
    return mixed


def check_user_id(user_id: str) -> None:
    """Raises InvalidInteraction for an empty or oversized user id."""
    num_bytes = len(user_id.encode())
    if not 1 <= num_bytes <= MAX_USER_ID_BYTES:
        raise InvalidInteraction(
            f"user_id has {num_bytes} bytes; it must have 1 to {MAX_USER_ID_BYTES}"
        )


def check_event_id(event_id: str) -> None:
    """Raises InvalidInteraction for an empty or oversized event id."""
    num_bytes = len(event_id.encode())
    if not 1 <= num_bytes <= MAX_EVENT_ID_BYTES:
        raise InvalidInteraction(
            f"event_id has {num_bytes} bytes; it must have 1 to {MAX_EVENT_ID_BYTES}"
        )


def check_item_id(item_id: int) -> None:
    """Raises InvalidInteraction for item id 0, which means "not set" on the wire."""
    if item_id == 0:
        raise InvalidInteraction("item_id is 0 or missing; every interaction names an item")


def check_event_time(event_time_ms: int, name: str = "event_time_ms") -> None:
    """Raises InvalidInteraction for a time, as it is named, that cannot be milliseconds since the epoch."""
    if MIN_EVENT_TIME_MS <= event_time_ms < MAX_EVENT_TIME_MS:
        return
    hint = ""
    if MIN_EVENT_TIME_MS <= event_time_ms * 1000 < MAX_EVENT_TIME_MS:
        hint = "; it looks like seconds"
    elif MIN_EVENT_TIME_MS <= event_time_ms // 1000 < MAX_EVENT_TIME_MS:
        hint = "; it looks like microseconds"
    elif MIN_EVENT_TIME_MS <= event_time_ms // 1_000_000 < MAX_EVENT_TIME_MS:
        hint = "; it looks like nanoseconds"
    raise InvalidInteraction(
        f"{name} is {event_time_ms}; milliseconds from 2000-01-01 to 2100-01-01 "
        f"({MIN_EVENT_TIME_MS} to {MAX_EVENT_TIME_MS}) are accepted{hint}"
    )
