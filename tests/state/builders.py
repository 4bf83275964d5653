"""Small makers of interactions for tests."""

from dataclasses import replace

import numpy as np

from state import keys
from state.arrivals import Arrivals, Position
from state.chunk_codec import decode_rows
from state.head_codec import decode_head
from state.interaction import INTERACTION, Rows
from state.key_value_store import Family, KeyValueStore
from state.segments import HistoryConfig
from state.summary import Summary

SMALL = HistoryConfig(recent_len=4, mid_term_len=12, chunk_len=3, max_history=30)
START_MS = 1_700_000_000_000


def make_rows(
    times: list[int], hashes: list[int] | None = None, first_item: int = 1, base_ms: int = START_MS
) -> Rows:
    """Rows at START_MS + times; hashes default to distinct values."""
    rows = np.zeros(len(times), INTERACTION)
    rows["event_time_ms"] = base_ms + np.asarray(times, np.int64)
    rows["item_id"] = np.arange(first_item, first_item + len(times))
    rows["author_id"] = rows["item_id"] % 7
    rows["kinds"] = 2
    rows["event_hash"] = rows["item_id"] if hashes is None else hashes
    return rows


def arrive(rows: Rows, user: str = "ann", first_offset: int = 0) -> Arrivals:
    end = first_offset + len(rows)
    return Arrivals(
        0, Position(end, 7), [user.encode()] * len(rows), np.arange(first_offset, end), rows
    )


def summary_at(boundary: int, version: str = "v1") -> Summary:
    return Summary(
        bundle_version=version,
        boundary=boundary,
        count=boundary,
        accumulators=b"z",
        tokens=np.zeros((2, 3), np.float32),
        built_at_ms=1,
    )


def stored_histories(store: KeyValueStore) -> dict[bytes, object]:
    """Every byte of every user, summaries aside; a tail whole, since its blocks depend on how polls were cut."""
    histories: dict[bytes, object] = {}
    tails: dict[bytes, bytes] = {}
    open_rows: dict[bytes, bytes] = {}
    for key, value in store.scan(Family.USERS, *keys.all_users()):
        user, rest = keys.split_user_key(key)
        kind = rest[:1]
        if kind == keys.HEAD:
            meta, rows = decode_head(value)
            histories[key] = replace(meta, tail_blocks=0)
            open_rows[user] = rows.tobytes()
        elif kind == keys.TAIL:
            tails[user] = tails.get(user, b"") + decode_rows(value).tobytes()
        elif kind != keys.SUMMARY:
            histories[key] = value
    return {**histories, **{user: tails.get(user, b"") + open_rows[user] for user in open_rows}}
