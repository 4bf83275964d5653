"""Records of the topic `items`: what they say, and why some cannot be used."""

import pytest
from hypothesis import given, strategies as st

from protos.item_pb2 import CatalogueEntry, Item
from stream.item_records import item_key, parse_item_record


def test_an_entry_and_a_removal() -> None:
    entry = CatalogueEntry(item=Item(item_id=7, title="seven"), seen_with=[1])
    record = parse_item_record(item_key(7), entry.SerializeToString(), 3, 9)
    assert (record.item_id, record.entry, record.fault) == (7, entry, None)
    assert (record.key, record.offset, record.time_ms) == ("7", 3, 9)
    removal = parse_item_record(item_key(7), None, 4, 9)
    assert (removal.item_id, removal.entry, removal.fault) == (7, None, None)


@pytest.mark.parametrize(
    "key", [None, b"", b"0", b"07", b"-1", b"x", b"\xff", b"18446744073709551616", b"1.0"]
)
def test_keys_that_are_no_item_id(key: bytes | None) -> None:
    record = parse_item_record(key, None, 0, 0)
    assert record.item_id is None
    assert "an item id in decimal digits is needed" in (record.fault or "")


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (b"\xff", "no CatalogueEntry"),
        (b"", "the key is 7 and item.item_id 0"),
        (CatalogueEntry(item=Item(item_id=8)).SerializeToString(), "item.item_id 8"),
        (
            CatalogueEntry(item=Item(item_id=7), expires_at_ms=-1).SerializeToString(),
            "expires_at_ms is -1",
        ),
    ],
)
def test_values_that_cannot_be_used(value: bytes, fault: str) -> None:
    record = parse_item_record(b"7", value, 0, 0)
    assert (record.item_id, record.entry) == (7, None)
    assert fault in (record.fault or "")


@given(st.none() | st.binary(max_size=30), st.none() | st.binary(max_size=30))
def test_no_bytes_raise(key: bytes | None, value: bytes | None) -> None:
    record = parse_item_record(key, value, 0, 0)
    assert record.fault or value is None or record.entry is not None
