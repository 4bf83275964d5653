"""Page tokens: what was shown comes back, and nothing else is taken for one."""

import base64
import zlib

import numpy as np
import pytest
from hypothesis import given, strategies as st

from services.errors import InvalidRequest
from services.page_token import MAX_SHOWN, _digest, make_page_token, read_page_token

item_ids = st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=40)


def array(ids: list[int]) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    return np.array(ids, np.uint64)


@given(item_ids, st.text(max_size=20))
def test_what_was_shown_comes_back(ids: list[int], user: str) -> None:
    token = make_page_token(user, array(ids))
    assert read_page_token(token, user).tolist() == sorted(ids)
    assert token.isascii()
    assert token.isprintable()


@given(item_ids, st.data())
def test_a_damaged_token_is_refused(ids: list[int], data: st.DataObject) -> None:
    token = make_page_token("ann", array(ids))
    place = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from("AZaz09-_=+/ é"))
    damaged = token[:place] + other + token[place + 1 :]
    if decoded(damaged) == decoded(token):
        return  # the last character has bits that mean nothing
    with pytest.raises(InvalidRequest):
        read_page_token(damaged, "ann")


def decoded(token: str) -> bytes | None:
    try:
        return base64.b64decode(token + "=" * (-len(token) % 4), b"-_", validate=True)
    except ValueError:
        return None


@given(st.text(max_size=60))
def test_any_text_is_refused_or_read(text: str) -> None:
    with pytest.raises(InvalidRequest):
        read_page_token(text, "ann")


def test_a_token_is_its_users() -> None:
    token = make_page_token("ann", array([1, 2]))
    with pytest.raises(InvalidRequest, match="belongs to another user"):
        read_page_token(token, "bob")


def test_another_format_says_so() -> None:
    with pytest.raises(InvalidRequest, match="begin with the first page"):
        read_page_token(base64.urlsafe_b64encode(b"\x02" + bytes(20)).decode(), "ann")


def test_sizes_are_bounded() -> None:
    most = np.random.default_rng(0).integers(0, 2**64, MAX_SHOWN, np.uint64)
    assert read_page_token(make_page_token("ann", most), "ann").tolist() == sorted(most.tolist())
    ordinary = np.random.default_rng(0).permutation(30_000)[:100].astype(np.uint64)
    assert len(make_page_token("ann", ordinary)) < 300
    with pytest.raises(InvalidRequest, match="100000 characters"):
        read_page_token("A" * 100_000, "ann")


@pytest.mark.parametrize("planes", [bytes(7), bytes(8 * MAX_SHOWN + 8), bytes(1 << 24)])
def test_a_forged_payload_is_bounded_too(planes: bytes) -> None:
    payload = zlib.compress(planes)
    forged = base64.urlsafe_b64encode(b"\x01" + _digest("ann", payload) + payload).decode()
    with pytest.raises(InvalidRequest, match="damaged"):
        read_page_token(forged.rstrip("="), "ann")
