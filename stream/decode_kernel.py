"""Ordinary interactions of a whole poll at once, by compiled code: the fast twin of the reading in stream/decode.py.

A record is ordinary when it is a valid interaction, its ids are ASCII and its key is its user id. The others, requests to
forget among them, are left to google.protobuf, which alone gives reasons. So this code may pass over a record, but what
it reads it reads as google.protobuf does: fields in any order, the last of a repeated one wins, unknown ones are skipped.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from state.compiled import compiled
from state.event_hash import hash_slices
from state.interaction import INTERACTION, Rows

# Field numbers of protos/interaction.proto. What else comes from other files is an argument (see state/compiled.py).
EVENT_ID, USER_ID, ITEM_ID, AUTHOR_ID, TAG = 1, 2, 3, 4, 5
EVENT_TIME_MS, PLAY_TIME_MS, DURATION_MS, KINDS = 6, 7, 8, 9
_WIRE_TYPES = _VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5  # no groups
_MAX_VARINT_BYTES, _MAX_VARINT32_BYTES = 10, 5
_MAX_TAG = _LOW_32_BITS = (1 << 32) - 1

_Bytes: TypeAlias = npt.NDArray[np.uint8]
_Ints: TypeAlias = npt.NDArray[np.int64]
_Span: TypeAlias = tuple[int, int]
"""Start and end of a string among bytes."""


class Limits(NamedTuple):
    """What an interaction is held against."""

    partition: int
    num_partitions: int
    max_user_id_bytes: int
    max_event_id_bytes: int
    min_event_time_ms: int
    end_event_time_ms: int
    max_future_ms: int
    max_value_bytes: int
    kinds_mask: int
    forget_mask: int
    """The bit of the kind that makes a request of an interaction."""


class Read(NamedTuple):
    """What was read of a poll, record by record."""

    rows: Rows
    fine: npt.NDArray[np.bool_]
    """False where a row is not to be used, and the record to be read otherwise."""
    future: int
    """Fine rows whose event time was set back to the record's timestamp."""


class _Joined(NamedTuple):
    """Byte strings end to end."""

    data: _Bytes
    ends: _Ints


def read_interactions(
    values: Sequence[bytes], keys: Sequence[bytes], timestamps: _Ints, limits: Limits
) -> Read:
    """Read the ordinary ones among the records of one partition."""
    rows = np.zeros(len(values), INTERACTION)
    joined = _join(values)
    fine, starts, ends, future = _read_all(joined, _join(keys), timestamps, limits, rows)
    times_ms = np.ascontiguousarray(rows["event_time_ms"])
    rows["event_hash"] = hash_slices(joined.data, starts, ends, times_ms)
    return Read(rows, fine, future)


def _join(strings: Sequence[bytes]) -> _Joined:
    lengths = np.fromiter(map(len, strings), np.int64, len(strings))
    return _Joined(np.frombuffer(b"".join(strings), np.uint8), np.cumsum(lengths))


@compiled
def _read_all(
    values: _Joined,
    keys: _Joined,
    timestamps: _Ints,
    limits: Limits,
    rows: Rows,
) -> tuple[npt.NDArray[np.bool_], _Ints, _Ints, int]:
    """Fill `rows`. Gives per record whether it is fine and where its event id starts and ends; and `Read.future`."""
    (data, data_ends), (key_data, key_ends) = values, keys
    fine = np.zeros(len(rows), np.bool_)
    id_starts, id_ends = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    future = start = key_start = 0
    for i in range(len(rows)):
        row, end, key_end = rows[i], data_ends[i], key_ends[i]
        understood, event_id, user_id = _parse(data, start, end, row)
        fine[i] = (
            understood
            and not row["kinds"] & limits.forget_mask
            and end - start <= limits.max_value_bytes
            and _within_limits(row, event_id, user_id, limits)
            and _are_equal(data, user_id, key_data, (key_start, key_end))
            and _partition_of(data, user_id, limits.num_partitions) == limits.partition
        )
        if fine[i]:
            row["kinds"] &= limits.kinds_mask
            future += _set_back(row, timestamps[i], limits)
            id_starts[i], id_ends[i] = event_id
        start, key_start = end, key_end
    return fine, id_starts, id_ends, future


@compiled
def _parse(values: _Bytes, position: int, end: int, row: np.void) -> tuple[bool, _Span, _Span]:
    """Read one message into `row`. Gives whether it was understood, event id and user id."""
    event_id = user_id = (0, 0)
    while position < end:
        tag, position = _varint(values, position, end, _MAX_VARINT32_BYTES)
        field, wire_type = tag >> 3, tag & 7
        understood = field > 0 and tag <= _MAX_TAG and wire_type in _WIRE_TYPES
        if wire_type == _VARINT:
            value, position = _varint(values, position, end, _MAX_VARINT_BYTES)
            _set_number(row, field, value)
        elif wire_type == _LENGTH_DELIMITED:
            start, position = _length_delimited(values, position, end)
            understood &= _set_kinds_or_check_text(values, start, position, field, row)
            if field == EVENT_ID:
                event_id = (start, position)
            elif field == USER_ID:
                user_id = (start, position)
        else:
            position += 8 if wire_type == _FIXED64 else 4
        if not understood or position > end:
            return False, event_id, user_id
    return True, event_id, user_id


@compiled
def _varint(values: _Bytes, start: int, end: int, max_bytes: int) -> tuple[int, int]:
    """The 64 bits of a varint and where it ends; behind `end` if it is cut off or too long."""
    if start < end and values[start] < 0x80:  # most are one byte
        return int(values[start]), start + 1
    value = shift = 0
    for position in range(start, min(end, start + max_bytes)):
        byte = int(values[position])
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    return 0, end + 1


@compiled
def _length_delimited(values: _Bytes, position: int, end: int) -> _Span:
    """Where the content starts and ends; nowhere, behind `end`, if it is cut off."""
    length, start = _varint(values, position, end, _MAX_VARINT32_BYTES)
    if length > end - start:
        return end + 1, end + 1
    return start, start + length


@compiled
def _set_number(row: np.void, field: int, value: int) -> None:
    """Set the column of a numeric field; others are left alone."""
    if field == ITEM_ID:
        row["item_id"] = value
    elif field == AUTHOR_ID:
        row["author_id"] = value
    elif field == TAG:
        row["tag"] = value & _LOW_32_BITS
    elif field == EVENT_TIME_MS:
        row["event_time_ms"] = value
    elif field == PLAY_TIME_MS:
        row["play_time_ms"] = value & _LOW_32_BITS
    elif field == DURATION_MS:
        row["duration_ms"] = value & _LOW_32_BITS
    elif field == KINDS and value & _LOW_32_BITS < 32:
        row["kinds"] |= 1 << (value & _LOW_32_BITS)


@compiled
def _set_kinds_or_check_text(
    values: _Bytes, start: int, end: int, field: int, row: np.void
) -> bool:
    """Packed kinds go into `row`. Whether they are whole, or the text of an id is ASCII."""
    position = start
    if field == KINDS:
        while position < end:
            kind, position = _varint(values, position, end, _MAX_VARINT_BYTES)
            _set_number(row, KINDS, kind)
    elif field in (EVENT_ID, USER_ID):
        while position < end and values[position] < 0x80:
            position += 1
    else:
        position = end
    return position == end


@compiled
def _within_limits(row: np.void, event_id: _Span, user_id: _Span, limits: Limits) -> bool:
    return (
        1 <= event_id[1] - event_id[0] <= limits.max_event_id_bytes
        and 1 <= user_id[1] - user_id[0] <= limits.max_user_id_bytes
        and row["item_id"] != 0
        and limits.min_event_time_ms <= row["event_time_ms"] < limits.end_event_time_ms
    )


@compiled
def _are_equal(left: _Bytes, left_span: _Span, right: _Bytes, right_span: _Span) -> bool:
    i, (j, right_end) = left_span[0], right_span
    if left_span[1] - i != right_end - j:
        return False
    while j < right_end and left[i] == right[j]:
        i, j = i + 1, j + 1
    return j == right_end


@compiled
def _set_back(row: np.void, timestamp: int, limits: Limits) -> bool:
    """Whether the event time lay too far ahead of the record's timestamp; then it is that now."""
    ahead = (
        timestamp >= limits.min_event_time_ms  # a broken clock is no judge
        and row["event_time_ms"] - timestamp > limits.max_future_ms
    )
    if ahead:
        row["event_time_ms"] = timestamp
    return ahead


@compiled
def _partition_of(data: _Bytes, span: _Span, num_partitions: int) -> int:
    """stream.topics.partition_of: murmur2 as Kafka's Java client has it."""
    multiplier = 0x5BD1E995
    start, end = span
    mixed = 0x9747B28C ^ (end - start)
    for word_start in range(start, end - 3, 4):
        word = 0
        for i in range(4):
            word |= int(data[word_start + i]) << (8 * i)
        word = (word * multiplier) & _LOW_32_BITS
        word = ((word ^ (word >> 24)) * multiplier) & _LOW_32_BITS
        mixed = ((mixed * multiplier) & _LOW_32_BITS) ^ word
    rest = (end - start) % 4
    if rest:
        for i in range(rest):
            mixed ^= int(data[end - rest + i]) << (8 * i)
        mixed = (mixed * multiplier) & _LOW_32_BITS
    mixed = ((mixed ^ (mixed >> 13)) * multiplier) & _LOW_32_BITS
    mixed ^= mixed >> 15
    return (mixed & 0x7FFFFFFF) % num_partitions
