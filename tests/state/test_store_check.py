"""`check_store`: silent about what the store writes, and names what is damaged."""

import zlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from state import keys
from state.arrivals import Arrivals, Deletion, Position
from state.chunk_codec import decode_rows, encode_rows
from state.key_value_store import Batch, Family, MemoryStore
from state.segments import HistoryConfig
from state.store_check import check_store
from state.summary import Summary
from state.user_store import UserStore
from tests.state.builders import SMALL, START_MS, make_rows
from tests.state.checkpointing import add, delete

ANN = keys.user_prefix(b"ann")
WIDE = HistoryConfig(recent_len=20, mid_term_len=40, chunk_len=5, max_history=60)


def store_of_ann(count: int = 98) -> UserStore:
    """Chunks, tail blocks, open rows, evicted chunks and a summary."""
    store = UserStore(MemoryStore(), WIDE, 0)
    for start in range(0, count, 2):
        rows = make_rows([start, start + 1], first_item=start + 1)
        offsets = np.arange(start, start + 2)
        store.apply(Arrivals(0, Position(start + 2, 0), [b"ann"] * 2, offsets, rows))
    tokens = np.zeros((2, 3), np.float32)
    summary = Summary(
        bundle_version="v1", boundary=50, count=50, accumulators=b"", tokens=tokens, built_at_ms=1
    )
    assert store.put_summary("ann", summary, 0, 0)[0]
    return store


def damage_of(store: UserStore) -> list[tuple[str | None, str, str]]:
    report = check_store(store.database, WIDE, 0)
    return [(each.user, each.record, each.reason) for each in report.damage]


def test_what_the_store_writes_is_found_to_be_right() -> None:
    store = store_of_ann()
    add(store, 60, users=7)
    delete(store, "user-1")
    store.record_hole(1_000, 1)
    report = check_store(store.database, WIDE, 0)
    assert report.damage == []
    assert report.users == 8
    assert report.records == 20


@settings(max_examples=40, deadline=None)
@given(
    polls=st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), min_size=1, max_size=25),
        max_size=8,
    ),
    history=st.sampled_from([SMALL, WIDE]),
)
def test_any_order_of_arrivals_is_found_to_be_right(
    polls: list[list[tuple[int, int]]], history: HistoryConfig
) -> None:
    store = UserStore(MemoryStore(), history, 0)
    offset = 0
    for poll in polls:
        rows = make_rows([time for _, time in poll], first_item=offset + 1)
        offsets = np.arange(offset, offset + len(poll))
        offset += len(poll)
        users = [f"user-{user}".encode() for user, _ in poll]
        deletions = [Deletion("user-0", offset, START_MS + 5)] if len(poll) % 4 == 0 else []
        if len(poll) % 3 == 0:
            deletions.append(
                Deletion("user-1", offset + len(deletions), START_MS + 50, offset // 2)
            )
        offset += len(deletions)
        store.apply(Arrivals(0, Position(offset, 0), users, offsets, rows, deletions))
        assert damage_of_any(store, history) == []


def damage_of_any(store: UserStore, history: HistoryConfig) -> list[object]:
    return list(check_store(store.database, history, 0).damage)


def first_key(store: UserStore, kind: bytes, nth: int = 0) -> bytes:
    found = [
        key
        for key, _ in store.database.scan(Family.USERS, ANN, keys.after(ANN))
        if key[len(ANN) : len(ANN) + 1] == kind
    ]
    return found[nth]


def flip(value: bytes) -> bytes:
    return value[:-1] + bytes([value[-1] ^ 1])


def newer(value: bytes) -> bytes:
    head = bytes([9]) + value[1:6]
    checksum = zlib.crc32(value[10:], zlib.crc32(head))
    return head + checksum.to_bytes(4, "little") + value[10:]


def shorter(value: bytes) -> bytes:
    return encode_rows(decode_rows(value)[:-1], with_hashes=False)


@pytest.mark.parametrize(
    ("kind", "change", "record", "reason"),
    [
        (keys.HEAD, flip, "head", "fails its checksum"),
        (keys.TAIL, flip, "tail block 75", "fails its checksum"),
        (keys.CHUNK, flip, "chunk 45", "fails its checksum"),
        (keys.CHUNK, newer, "chunk 45", "format version 9"),
        (keys.CHUNK, shorter, "chunk 45", "holds 4 interactions, not 5"),
        (keys.CHUNK, None, "chunk 45", "is not there: the next chunk begins at position 50"),
        (keys.SUMMARY, flip, "summary of bundle v1", "fails its checksum"),
        (keys.HEAD, None, "head", "is missing, though there are other records"),
    ],
)
def test_damage_is_named(
    kind: bytes, change: Callable[[bytes], bytes] | None, record: str, reason: str
) -> None:
    store = store_of_ann()
    key = first_key(store, kind, nth=1 if kind == keys.CHUNK else 0)
    (value,) = store.database.get(Family.USERS, [key])
    assert value is not None
    batch = Batch()
    if change is None:
        batch.delete(Family.USERS, key)
    else:
        batch.put(Family.USERS, key, change(value))
    store.database.write(batch)
    found = damage_of(store)
    assert found[0][:2] == ("ann", record), found
    assert reason in found[0][2]


def test_a_lost_tail_block_and_a_lost_last_chunk_are_named() -> None:
    for kind in (keys.TAIL, keys.CHUNK):
        store = store_of_ann()
        batch = Batch()
        batch.delete(Family.USERS, first_key(store, kind, nth=-1))
        store.database.write(batch)
        assert any("the head says" in reason for _, _, reason in damage_of(store))


def test_what_belongs_to_no_user_is_checked_too() -> None:
    store = store_of_ann()
    batch = Batch()
    batch.put(Family.SYSTEM, keys.POSITION_KEY, b"short")
    batch.delete(Family.SYSTEM, keys.FORMAT_KEY)
    store.database.write(batch)
    assert [record for _, record, _ in damage_of(store)] == [
        "format",
        "position, hole, dirty mark or rollout",
    ]


def test_another_partition_is_named() -> None:
    report = check_store(store_of_ann().database, WIDE, 5)
    assert "made for partition 0, not 5" in report.damage[0].reason
