"""Small makers of interactions for tests."""

from dataclasses import replace

import numpy as np

from state import keys
from state.chunk_codec import decode_rows
from state.interaction import INTERACTION, Rows
from state.key_value_store import Family, KeyValueStore
from state.record_codec import decode_meta
from state.segments import HistoryConfig

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


def stored_histories(store: KeyValueStore) -> dict[bytes, object]:
    """Every byte of every user, summaries aside; a tail whole, since its blocks depend on how polls were cut."""
    histories: dict[bytes, object] = {}
    tails: dict[bytes, bytes] = {}
    for key, value in store.scan(Family.USERS, b"\x00", b"\xff"):
        _, rest = keys.split_user_key(key)
        kind = rest[:1]
        if kind == keys.META:
            histories[key] = replace(decode_meta(value), tail_blocks=0)
        elif kind == keys.TAIL:
            tail = key[: len(key) - len(rest)] + keys.TAIL
            tails[tail] = tails.get(tail, b"") + decode_rows(value).tobytes()
        elif kind != keys.SUMMARY:
            histories[key] = value
    return {**histories, **tails}
