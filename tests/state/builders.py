"""Small makers of interactions for tests."""

import numpy as np

from state.interaction import INTERACTION, Rows
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
