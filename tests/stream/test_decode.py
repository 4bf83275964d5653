"""Bytes to interactions: good ones exactly, bad ones with a reason that helps their producer."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, strategies as st

from protos.interaction_pb2 import Interaction
from state.arrivals import Deletion
from stream.decode import Decoded, Decoder, DecoderConfig
from stream.topics import partition_of

NOW_MS = 1_790_000_000_000
NUM_PARTITIONS = 3


@dataclass(frozen=True)
class FakeRecord:
    value: bytes | None
    partition: int = partition_of("ann", NUM_PARTITIONS)
    offset: int = 0
    timestamp: int = NOW_MS
    key: bytes | None = b"ann"
    headers: Sequence[tuple[str, bytes]] = ()


def interaction(**fields: object) -> bytes:
    values: dict[str, object] = {
        "event_id": "e1",
        "user_id": "ann",
        "item_id": 7,
        "event_time_ms": NOW_MS - 1_000,
        "kinds": [1, 3],
    }
    return Interaction(**{**values, **fields}).SerializeToString()  # type: ignore[arg-type]


def decode(*records: FakeRecord) -> Decoded:
    decoder = Decoder(DecoderConfig(), NUM_PARTITIONS)
    return decoder.decode(partition_of("ann", NUM_PARTITIONS), records)


def test_every_field_arrives() -> None:
    value = interaction(author_id=8, tag=9, play_time_ms=10, duration_ms=11)
    rows = decode(FakeRecord(value)).arrivals.rows
    row = dict(zip(rows.dtype.names or (), rows[0].tolist(), strict=True))
    row.pop("event_hash")
    assert row == {
        "item_id": 7,
        "author_id": 8,
        "tag": 9,
        "event_time_ms": NOW_MS - 1_000,
        "play_time_ms": 10,
        "duration_ms": 11,
        "kinds": 0b1010,
    }


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\xff\xff\xff", "not a gemstream.v1.Interaction"),
        (b'{"event_id": "e1", "user_id": "ann"}', ""),
        (interaction()[:-2], ""),
        (b"", "user_id has 0 bytes"),
        (interaction(user_id=""), "user_id has 0 bytes"),
        (interaction(user_id="x" * 10_000), "user_id has 10000 bytes"),
        (interaction(event_id=""), "event_id has 0 bytes"),
        (interaction(item_id=0), "item_id is 0"),
        (interaction(event_time_ms=0), "event_time_ms is 0"),
        (interaction(event_time_ms=-5), "event_time_ms is -5"),
        (interaction(event_time_ms=NOW_MS // 1_000), "looks like seconds"),
        (interaction(event_time_ms=NOW_MS * 1_000), "looks like microseconds"),
        (interaction(event_time_ms=2**62), "event_time_ms"),
        (interaction(user_id="bob"), "belongs to partition"),
        (b"x" * 5_000_000, "5000000 bytes"),
    ],
)
def test_bad_records_are_rejected_and_their_neighbours_kept(
    value: bytes | None, reason: str
) -> None:
    assert partition_of("bob", NUM_PARTITIONS) != partition_of("ann", NUM_PARTITIONS)
    good = interaction()
    decoded = decode(FakeRecord(good), FakeRecord(value, offset=1), FakeRecord(good, offset=5))
    assert decoded.arrivals.offsets.tolist() == [0, 5]
    assert decoded.arrivals.position.next_offset == 6
    assert [letter.record.offset for letter in decoded.rejected] == [1]
    assert reason in decoded.rejected[0].reason


def test_a_null_value_deletes_the_user_in_the_key() -> None:
    decoded = decode(
        FakeRecord(interaction()), FakeRecord(None, offset=1), FakeRecord(interaction(), offset=2)
    )
    assert decoded.arrivals.deletions == [Deletion("ann", 1, NOW_MS)]
    assert decoded.arrivals.offsets.tolist() == [0, 2]
    assert decoded.rejected == []


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (None, "user_id has 0 bytes"),
        (b"", "user_id has 0 bytes"),
        (b"\xff", "no user id"),
        (b"bob", "belongs to"),
    ],
)
def test_a_null_value_without_a_user_is_rejected(key: bytes | None, reason: str) -> None:
    (letter,) = decode(FakeRecord(None, key=key)).rejected
    assert reason in letter.reason


def forget(**fields: object) -> bytes:
    values: dict[str, object] = {"user_id": "ann", "item_id": 7, "kinds": [10]}
    return Interaction(**{**values, **fields}).SerializeToString()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    [
        forget(),
        forget(kinds=[1, 10]),
        forget(event_id="e9", event_time_ms=NOW_MS - 5_000),
        interaction(kinds=[10, 3]),
    ],
)
def test_a_request_to_forget_an_item_is_no_interaction(value: bytes) -> None:
    decoded = decode(
        FakeRecord(interaction()), FakeRecord(value, offset=1), FakeRecord(interaction(), offset=2)
    )
    assert decoded.arrivals.deletions == [Deletion("ann", 1, NOW_MS, item_id=7)]
    assert decoded.arrivals.offsets.tolist() == [0, 2]
    assert decoded.rejected == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"item_id": 0}, "item_id is 0"),
        ({"user_id": ""}, "user_id has 0 bytes"),
        ({"user_id": "bob"}, "belongs to"),
    ],
)
def test_a_request_to_forget_nothing_is_rejected(fields: dict[str, object], reason: str) -> None:
    (letter,) = decode(FakeRecord(forget(**fields))).rejected
    assert reason in letter.reason


def test_a_clock_from_the_future_is_set_back_and_counted() -> None:
    ahead = interaction(event_time_ms=NOW_MS + 3_600_000)
    slightly = interaction(event_time_ms=NOW_MS + 1_000)
    decoded = decode(FakeRecord(ahead), FakeRecord(slightly, offset=1))
    assert decoded.arrivals.rows["event_time_ms"].tolist() == [NOW_MS, NOW_MS + 1_000]
    assert decoded.future == 1


def test_a_broken_record_clock_is_no_judge() -> None:
    (time_ms,) = decode(FakeRecord(interaction(), timestamp=-1)).arrivals.rows["event_time_ms"]
    assert time_ms == NOW_MS - 1_000


def test_newer_producers_are_understood() -> None:
    unknown_field = b"\xa2\x06\x03abc"  # field 100
    rows = decode(FakeRecord(interaction(kinds=[3, 31, 77]) + unknown_field)).arrivals.rows
    assert rows["kinds"].tolist() == [0b1000]


@given(st.binary(max_size=200))
def test_rubbish_never_raises(value: bytes) -> None:
    decoded = decode(FakeRecord(value))
    assert decoded.arrivals.position.next_offset == 1
    assert len(decoded.rejected) + len(decoded.arrivals.rows) == 1
