"""Bytes of chunks, heads, summaries and lists of forgotten items: round trips, damage found, unknown versions refused."""

import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as np_st

from state import keys
from state.chunk_codec import decode_rows, encode_records, encode_rows
from state.envelope import seal, unseal
from state.errors import CorruptValue, UnknownFormat
from state.forgotten_codec import decode_forgotten, encode_forgotten
from state.forgotten_items import FORGOTTEN, ForgottenItems
from state.head_codec import (
    MAX_OPEN,
    decode_head,
    decode_heads,
    encode_heads,
    make_head,
    stored_length,
)
from state.interaction import INTERACTION, Rows
from state.summary import Summary
from state.summary_codec import decode_summary, encode_summary
from state.user_state import UserMeta
from tests.state.builders import make_rows

any_rows = np_st.arrays(INTERACTION, st.integers(0, 40))


@given(any_rows)
def test_rows_come_back_with_hashes(rows: Rows) -> None:
    assert np.array_equal(decode_rows(encode_rows(rows, with_hashes=True)), rows)


@given(any_rows)
def test_records_come_back(rows: Rows) -> None:
    assert np.array_equal(decode_rows(encode_records(rows.tobytes())), rows)


positions = st.integers(0, 2**62)
metas = st.builds(
    UserMeta, version=positions, length=positions, lifecycle_boundary=positions, epoch=positions
)
open_rows = np_st.arrays(INTERACTION, st.integers(0, MAX_OPEN))


@given(st.lists(st.tuples(metas, open_rows), min_size=1, max_size=9))
def test_heads_come_back_one_by_one_and_together(users: list[tuple[UserMeta, Rows]]) -> None:
    heads = np.concatenate([make_head(meta, rows) for meta, rows in users])
    values = encode_heads(heads)
    decoded = decode_heads(values)
    decoded["checksum"] = heads["checksum"]
    assert np.array_equal(decoded, heads)
    for value, (meta, rows) in zip(values, users, strict=True):
        decoded_meta, decoded_rows = decode_head(value)
        assert decoded_meta == meta
        assert np.array_equal(decoded_rows, rows)
        assert stored_length(value) == meta.length


@given(st.data())
def test_a_damaged_head_is_found(data: st.DataObject) -> None:
    (value,) = encode_heads(make_head(UserMeta(length=3), make_rows([1, 2, 3])))
    damaged = bytearray(value)
    bit = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises((CorruptValue, UnknownFormat)):
        decode_head(bytes(damaged))
    with pytest.raises(CorruptValue):
        decode_head(value[: data.draw(st.integers(0, len(value) - 1))])


@given(any_rows)
def test_rows_come_back_without_hashes(rows: Rows) -> None:
    expected = rows.copy()
    expected["event_hash"] = 0
    assert np.array_equal(decode_rows(encode_rows(rows, with_hashes=False)), expected)


@given(st.data())
def test_a_flipped_bit_in_rows_is_found(data: st.DataObject) -> None:
    encoded = bytearray(encode_rows(make_rows(list(range(20))), with_hashes=True))
    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    with pytest.raises((CorruptValue, UnknownFormat)):
        decode_rows(bytes(encoded))


def test_truncated_rows_are_found() -> None:
    encoded = encode_rows(make_rows([1, 2, 3]), with_hashes=False)
    for length in range(len(encoded)):
        with pytest.raises(CorruptValue):
            decode_rows(encoded[:length])


def test_unknown_versions_are_refused_and_told_from_damage() -> None:
    """A later release's value is whole; where the checksum does not hold, the version is what is damaged."""
    value = encode_rows(make_rows([1]), with_hashes=False)
    head = b"\x09" + value[1:6]
    checksum = zlib.crc32(value[10:], zlib.crc32(head)).to_bytes(4, "little")
    with pytest.raises(UnknownFormat, match="version 9"):
        decode_rows(head + checksum + value[10:])
    with pytest.raises(CorruptValue):
        decode_rows(b"\x09" + value[1:])
    (value,) = encode_heads(make_head(UserMeta(), make_rows([])))
    body = b"\x09" + value[5:]
    with pytest.raises(UnknownFormat, match="version 9"):
        decode_head(zlib.crc32(body).to_bytes(4, "little") + body)
    with pytest.raises(CorruptValue):
        decode_head(value[:4] + body)
    with pytest.raises(UnknownFormat, match="version 2"):
        unseal(seal(2, b"body"), "a record", 1)
    with pytest.raises(CorruptValue, match="version 9"):
        unseal(seal(9, b"body"), "a record", 1)


@given(st.integers(0, 5), st.integers(0, 6), st.binary(max_size=50), st.binary(max_size=50))
def test_summary_comes_back(
    num_tokens: int, width: int, accumulators: bytes, item_statistics: bytes
) -> None:
    tokens = np.arange(num_tokens * width, dtype=np.float32).reshape(num_tokens, width)
    summary = Summary(
        bundle_version="v1",
        boundary=512,
        count=512,
        accumulators=accumulators,
        tokens=tokens,
        built_at_ms=7,
        item_statistics=item_statistics,
    )
    decoded = decode_summary(encode_summary(summary), "v1")
    assert np.array_equal(decoded.tokens, tokens)
    assert (decoded.boundary, decoded.accumulators) == (512, accumulators)
    assert decoded.item_statistics == item_statistics
    damaged = bytearray(encode_summary(summary))
    damaged[-1] ^= 1
    with pytest.raises(CorruptValue):
        decode_summary(bytes(damaged), "v1")


@given(np_st.arrays(FORGOTTEN, st.integers(0, 20)), st.data())
def test_forgotten_items_come_back_and_damage_is_found(entries: Rows, data: st.DataObject) -> None:
    encoded = encode_forgotten(ForgottenItems(entries))
    assert np.array_equal(decode_forgotten(encoded).entries, entries)
    damaged = bytearray(encoded)
    bit = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises((CorruptValue, UnknownFormat)):
        decode_forgotten(bytes(damaged))
    for length in range(len(encoded)):
        with pytest.raises(CorruptValue):
            decode_forgotten(encoded[:length])


users = st.text(min_size=1, max_size=20).map(str.encode)


@given(users, users)
def test_no_users_prefix_begins_another(one: bytes, other: bytes) -> None:
    if one != other:
        assert not keys.user_prefix(one).startswith(keys.user_prefix(other))


@given(users, st.integers(0, 2**60))
def test_keys_can_be_read_back(user: bytes, position: int) -> None:
    prefix = keys.user_prefix(user)
    assert keys.split_user_key(keys.chunk_key(prefix, position))[1][:1] == keys.CHUNK
    assert keys.dirty_user(keys.dirty_key(user)) == user
    assert keys.split_user_key(prefix + keys.HEAD) == (user, keys.HEAD)
    assert prefix < keys.after(prefix)


GOLDEN = Path(__file__).parent / "golden"
"""What earlier releases wrote; one file per format version, never changed."""


@pytest.mark.parametrize("name", ["rows_v1.bin", "records_v1.bin"])
def test_rows_of_version_1_stay_readable(name: str) -> None:
    rows = decode_rows((GOLDEN / name).read_bytes())
    assert np.array_equal(rows, make_rows([0, 5, 5, 90_000]))


def test_head_of_version_1_stays_readable() -> None:
    meta, rows = decode_head((GOLDEN / "head_v1.bin").read_bytes())
    assert list(vars(meta).values()) == list(range(1, 12))
    assert np.array_equal(rows, make_rows([0, 5, 5, 90_000]))


def test_forgotten_items_of_version_1_stay_readable() -> None:
    forgotten = decode_forgotten((GOLDEN / "forgotten_v1.bin").read_bytes())
    assert forgotten.entries.tolist() == [(2**64 - 1, 1_000), (7, 2_000)]


@pytest.mark.parametrize(("version", "item_statistics"), [(1, b""), (2, b"statistics")])
def test_summaries_of_all_versions_stay_readable(version: int, item_statistics: bytes) -> None:
    summary = decode_summary((GOLDEN / f"summary_v{version}.bin").read_bytes(), "v")
    assert summary.item_statistics == item_statistics
    assert (summary.boundary, summary.count, summary.built_at_ms) == (512, 500, 7)
    assert summary.accumulators == b"accumulators"
    assert summary.tokens.tolist() == [[0, 1, 2], [3, 4, 5]]
