"""The compiled reading is the twin of google.protobuf's: whatever the bytes, both give the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from protos.interaction_pb2 import Interaction
from state.interaction import INTERACTION, hash_event
from stream import decode_kernel
from stream.decode import Decoded, Decoder, DecoderConfig, Record
from stream.decode_kernel import Read
from stream.topics import partition_of

NOW_MS = 1_790_000_000_000
CONFIG = DecoderConfig(max_value_bytes=2_000)
NUMBERS = (0, 1, 127, 128, 2**31, 2**32 - 1, 2**32 + 3, 2**63 - 1, 2**63, 2**64 - 1)
TIMES = (NOW_MS, NOW_MS + 300_000, NOW_MS + 300_001, 0, -1, 946_684_799_999, 4_102_444_800_000)


@dataclass(frozen=True)
class FakeRecord:
    value: bytes | None
    key: bytes | None = b"ann"
    offset: int = 0
    timestamp: int = NOW_MS
    partition: int = 0
    headers: Sequence[tuple[str, bytes]] = ()


class SlowDecoder(Decoder):
    """Leaves every record to google.protobuf."""

    def _read(self, partition: int, records: Sequence[Record], keys: Sequence[bytes]) -> Read:
        return Read(np.zeros(len(records), INTERACTION), np.zeros(len(records), np.bool_), 0)


@cache
def decoder(kind: type[Decoder], num_partitions: int) -> Decoder:
    return kind(CONFIG, num_partitions)


def varint(value: int, padding: int = 0) -> bytes:
    """Little-endian groups of seven bits, and more bytes than are needed."""
    value &= 2**64 - 1
    groups = [value & 0x7F]
    while value := value >> 7:
        groups.append(value & 0x7F)
    groups += [0] * padding
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def delimited(data: bytes, padding: int = 0) -> bytes:
    return varint(len(data), padding) + data


paddings = st.sampled_from([0] * 20 + [1, 1, 2, 3, 4, 9])
numbers = st.one_of(st.sampled_from(NUMBERS), st.integers(0, 2**64 - 1), st.integers(0, 40))
varints = st.builds(varint, numbers, paddings)
kinds = st.one_of(st.integers(0, 12), numbers)
packed = st.lists(st.builds(varint, kinds, paddings), max_size=4).map(b"".join)
enum_values = st.integers(0, 12) | st.integers(-(2**31), 2**31 - 1)
ascii_ids = st.text(st.characters(max_codepoint=127), min_size=1, max_size=20)
user_ids = st.sampled_from(["ann"] * 12 + ["bo", "eve-21", "x" * 256, "x" * 257, "zoë", ""])
event_ids = st.one_of([ascii_ids] * 6 + [st.sampled_from(["e" * 128, "e" * 129, "é", ""])])
usual_times = st.integers(NOW_MS - 10**9, NOW_MS + 600_000)
times = st.one_of([usual_times] * 6 + [st.sampled_from(TIMES)])


@st.composite
def fields(draw: st.DrawFn) -> bytes:
    """One field of any number and wire type, well-formed for the most part."""
    number = draw(st.sampled_from([*range(3, 10), *range(10), 9, 10, 15, 16, 100, 2**29 - 1]))
    wire_type = draw(st.sampled_from([0, 1, 2, 5] * 4 + [3, 4, 6, 7]))
    content = draw(packed if number == 9 else st.one_of(ascii_ids.map(str.encode), st.binary()))
    if wire_type == 3 and draw(st.booleans()):
        return varint(number << 3 | 3) + b"\x18\x05" + varint(number << 3 | 4)
    payload = {
        0: draw(varints),
        1: draw(st.binary(min_size=8, max_size=8)),
        2: delimited(content, draw(paddings)),
        5: draw(st.binary(min_size=4, max_size=4)),
    }
    return varint(number << 3 | wire_type, draw(paddings)) + payload.get(wire_type, b"\x00")


@st.composite
def messages(draw: st.DrawFn, user_id: str) -> bytes:
    """Valid partial messages in any order, other fields between them."""
    parts = [
        Interaction(user_id=user_id),
        Interaction(event_id=draw(event_ids)),
        Interaction(item_id=draw(st.integers(1, 2**64 - 1))),
        Interaction(event_time_ms=draw(times)),
        Interaction(kinds=draw(st.lists(enum_values))),  # type: ignore[arg-type]
        Interaction(
            author_id=draw(st.integers(0, 2**64 - 1)),
            tag=draw(st.integers(0, 2**32 - 1)),
            play_time_ms=draw(st.integers(0, 2**32 - 1)),
            duration_ms=draw(st.integers(0, 2**32 - 1)),
        ),
    ]
    serialised = [part.SerializeToString() for part in parts]
    others = draw(st.lists(fields(), max_size=2)) if draw(st.booleans()) else []
    return b"".join(draw(st.permutations(serialised + others)))


@st.composite
def mutated(draw: st.DrawFn, value: bytes) -> bytes:
    """The value with a byte changed, cut off, or followed by anything."""
    at = draw(st.integers(0, len(value)))
    change = draw(st.sampled_from(["byte", "cut", "append"]))
    if change == "cut":
        return value[:at]
    if change == "append":
        return value + draw(st.binary(max_size=12))
    return value[:at] + draw(st.binary(min_size=1, max_size=1)) + value[at + 1 :]


@st.composite
def any_record(draw: st.DrawFn) -> FakeRecord:
    user_id = draw(user_ids)
    value: bytes | None = draw(messages(user_id))
    what = draw(st.sampled_from(["whole"] * 6 + ["mutated", "mutated", "rubbish", "null"]))
    if what == "mutated":
        value = draw(mutated(value or b""))
    elif what != "whole":
        value = None if what == "null" else draw(st.binary(max_size=80))
    own_key = user_id.encode()
    key = draw(st.sampled_from([own_key] * 8 + [None, b"", b"bob", b"\xff"]))
    timestamp = draw(st.sampled_from([NOW_MS, NOW_MS, NOW_MS - 10**9, 0, -1, 2**63 - 1]))
    return FakeRecord(value, key, timestamp=timestamp)


def both(values: Sequence[FakeRecord], num_partitions: int = 1) -> tuple[Decoded, Decoded]:
    numbered: list[Record] = [
        FakeRecord(record.value, record.key, 3 * offset, record.timestamp)
        for offset, record in enumerate(values)
    ]
    fast, slow = (
        decoder(kind, num_partitions).decode(0, numbered) for kind in (Decoder, SlowDecoder)
    )
    return fast, slow


def assert_same(fast: Decoded, slow: Decoded) -> None:
    assert fast.rejected == slow.rejected
    assert fast.future == slow.future
    left, right = fast.arrivals, slow.arrivals
    assert left.rows.dtype == right.rows.dtype == INTERACTION
    assert left.rows.tolist() == right.rows.tolist()
    assert list(left.user_keys) == list(right.user_keys)
    assert left.offsets.tolist() == right.offsets.tolist()
    assert (left.deletions, left.position) == (right.deletions, right.position)


def whole(**values: object) -> bytes:
    given_values = {"event_id": "e", "user_id": "ann", "item_id": 7, "event_time_ms": NOW_MS}
    return Interaction(**{**given_values, **values}).SerializeToString()  # type: ignore[arg-type]


@settings(max_examples=500, deadline=None)
@given(st.lists(any_record(), min_size=1, max_size=8), st.sampled_from([1, 1, 3]))
def test_whatever_the_bytes_both_give_the_same(
    values: list[FakeRecord], num_partitions: int
) -> None:
    assert_same(*both(values, num_partitions))


@settings(max_examples=500, deadline=None)
@given(fields(), st.booleans())
@example(varint(3 << 3) + b"\xff" * 9 + b"\x7f", True)
@example(varint(3 << 3) + b"\xff" * 10 + b"\x01", True)
@example(varint(9 << 3 | 2) + b"\x02\x81", False)
@example(varint(1 << 3 | 2) + b"\x01\xff" + varint(1 << 3 | 2) + b"\x01e", True)
def test_any_field_beside_a_whole_message_is_read_alike(field: bytes, first: bool) -> None:
    value = field + whole() if first else whole() + field
    assert_same(*both([FakeRecord(whole()), FakeRecord(value), FakeRecord(whole(item_id=8))]))


def test_every_cut_and_every_changed_byte_of_a_message_is_read_alike() -> None:
    value = whole(author_id=2**63, tag=300, play_time_ms=2**31, duration_ms=5, kinds=[1, 9, 300])
    values = [value[:at] for at in range(len(value))]
    values += [
        value[:at] + bytes([byte]) + value[at + 1 :]
        for at in range(len(value))
        for byte in range(256)
    ]
    assert_same(*both([FakeRecord(value) for value in values]))


def test_the_edges_of_every_field_are_read_alike() -> None:
    values = [
        whole() + varint(field << 3) + varint(number, padding)
        for field in range(3, 10)
        for number in (*NUMBERS, *range(12), 31, 32, 33, 2**32 + 1)
        for padding in range(10)
    ]
    values += [whole() + varint(9 << 3 | 2) + delimited(varint(number)) for number in NUMBERS]
    values += [whole(event_id="e" * length) for length in (0, 1, 127, 128, 129)]
    values += [whole(event_time_ms=time_ms) for time_ms in TIMES]
    values += [
        whole() + field for field in (b"\x98\x80\x80\x80\x10\x05", b"\x98\x80\x80\x80\x00\x05")
    ]
    users = ["x" * length for length in (0, 1, 255, 256, 257)]
    records = [FakeRecord(whole(user_id=user), user.encode()) for user in users]
    assert_same(*both([*map(FakeRecord, values), *records]))


@pytest.mark.parametrize("size", [CONFIG.max_value_bytes, CONFIG.max_value_bytes + 1])
def test_the_size_of_a_value_has_a_limit(size: int) -> None:
    padding = size - len(whole()) - 4
    value = whole() + varint(100 << 3 | 2) + delimited(bytes(padding))
    assert len(value) == size
    fast, slow = both([FakeRecord(value)])
    assert_same(fast, slow)
    assert len(fast.rejected) == (size > CONFIG.max_value_bytes)


def test_the_ordinary_is_left_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    users = [user for n in range(300) if partition_of(user := f"user-{n}", 3) == 0]
    keys = [user.encode() for user in users]
    values = [
        whole(user_id=user, event_id=f"event-{user}", kinds=[1, 3], author_id=5, tag=6)
        + b"\xa2\x06\x03abc"
        for user in users
    ]
    monkeypatch.setattr(Decoder, "_decode_interaction", None)
    arrivals = (
        decoder(Decoder, 3).decode(0, list(map(FakeRecord, values, keys, range(300)))).arrivals
    )
    assert all(left is right for left, right in zip(arrivals.user_keys, keys, strict=True))
    assert arrivals.rows["kinds"].tolist() == [0b1010] * len(users)
    hashes = [hash_event(f"event-{user}", NOW_MS) for user in users]
    assert arrivals.rows["event_hash"].tolist() == hashes


def test_field_numbers_are_those_of_the_contract() -> None:
    numbers = {
        name.upper(): field.number for name, field in Interaction.DESCRIPTOR.fields_by_name.items()
    }
    assert numbers == {name: getattr(decode_kernel, name) for name in numbers}
