"""Bytes of chunks, meta data and summaries: round trips, damage found, unknown versions refused."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as np_st

from state import keys
from state.chunk_codec import decode_rows, encode_records, encode_rows
from state.errors import CorruptValue, UnknownFormat
from state.interaction import INTERACTION, Rows
from state.record_codec import (
    decode_meta,
    decode_metas,
    decode_summary,
    encode_meta,
    encode_metas,
    encode_summary,
)
from state.summary import Summary
from state.user_state import UserMeta
from tests.state.builders import make_rows

any_rows = np_st.arrays(INTERACTION, st.integers(0, 40))


@given(any_rows)
def test_rows_come_back_with_hashes(rows: Rows) -> None:
    assert np.array_equal(decode_rows(encode_rows(rows, with_hashes=True)), rows)


@given(any_rows)
def test_records_come_back(rows: Rows) -> None:
    assert np.array_equal(decode_rows(encode_records(rows.tobytes(), len(rows))), rows)


@given(
    st.lists(
        st.builds(UserMeta, version=st.integers(0, 2**62), tail_blocks=st.integers(0, 40)),
        max_size=9,
    )
)
def test_many_metas_are_as_single_ones(metas: list[UserMeta]) -> None:
    encoded = [encode_meta(meta) for meta in metas]
    fields = decode_metas([*encoded, None])
    assert encode_metas(fields) == [*encoded, encode_meta(UserMeta())]


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


def test_unknown_versions_are_refused() -> None:
    newer = b"\x09" + encode_rows(make_rows([1]), with_hashes=False)[1:]
    with pytest.raises(UnknownFormat, match="version 9"):
        decode_rows(newer)
    with pytest.raises(UnknownFormat, match="version 9"):
        decode_meta(b"\x09" + encode_meta(UserMeta())[1:])


positions = st.integers(0, 2**62)


@given(
    st.builds(
        UserMeta, version=positions, length=positions, lifecycle_boundary=positions, epoch=positions
    )
)
def test_meta_comes_back(meta: UserMeta) -> None:
    assert decode_meta(encode_meta(meta)) == meta


@given(st.integers(0, 5), st.integers(0, 6), st.binary(max_size=50))
def test_summary_comes_back(num_tokens: int, width: int, accumulators: bytes) -> None:
    tokens = np.arange(num_tokens * width, dtype=np.float32).reshape(num_tokens, width)
    summary = Summary(
        bundle_version="v1",
        boundary=512,
        count=512,
        accumulators=accumulators,
        tokens=tokens,
        built_at_ms=7,
    )
    decoded = decode_summary(encode_summary(summary), "v1")
    assert np.array_equal(decoded.tokens, tokens)
    assert (decoded.boundary, decoded.accumulators) == (512, accumulators)
    damaged = bytearray(encode_summary(summary))
    damaged[-1] ^= 1
    with pytest.raises(CorruptValue):
        decode_summary(bytes(damaged), "v1")


users = st.text(min_size=1, max_size=20)


@given(users, users)
def test_no_users_prefix_begins_another(one: str, other: str) -> None:
    if one != other:
        assert not keys.user_prefix(1, one).startswith(keys.user_prefix(1, other))


@given(users, st.integers(0, 2**60))
def test_keys_can_be_read_back(user: str, position: int) -> None:
    prefix = keys.user_prefix(3, user)
    assert keys.split_user_key(keys.chunk_key(prefix, position))[1][:1] == keys.CHUNK
    assert keys.dirty_user(keys.dirty_key(3, user)) == (3, user)
    assert keys.split_user_key(prefix + keys.META) == (user, keys.META)
    assert prefix < keys.after(prefix)


GOLDEN = Path(__file__).parent / "golden"
"""What earlier releases wrote; one file per format version, never changed."""


@pytest.mark.parametrize("name", ["rows_v1.bin", "records_v1.bin"])
def test_rows_of_version_1_stay_readable(name: str) -> None:
    rows = decode_rows((GOLDEN / name).read_bytes())
    assert np.array_equal(rows, make_rows([0, 5, 5, 90_000]))


def test_meta_of_version_1_stays_readable() -> None:
    meta = decode_meta((GOLDEN / "meta_v1.bin").read_bytes())
    assert list(vars(meta).values()) == list(range(1, 11))


def test_summary_of_version_1_stays_readable() -> None:
    summary = decode_summary((GOLDEN / "summary_v1.bin").read_bytes(), "v")
    assert (summary.boundary, summary.count, summary.built_at_ms) == (512, 500, 7)
    assert summary.accumulators == b"accumulators"
    assert summary.tokens.tolist() == [[0, 1, 2], [3, 4, 5]]
