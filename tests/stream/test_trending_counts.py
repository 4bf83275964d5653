"""Counting, decay and the heaviest pairs, against plain loops over the whole log."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from protos.interaction_pb2 import INTERACTION_KIND_DISLIKE
from state.arrivals import Arrivals, Position
from state.interaction import INTERACTION, Rows
from stream import trending_counts
from stream.counted_users import CountedUsers
from stream.errors import StreamError
from stream.trending_counts import PartitionCounts, TrendingConfig, Window
from tests.stream.trending import Event, weights_of_log

NOW_MS = 1_760_000_040_000
CONFIG = TrendingConfig(window_s=60, keep_s=600.0, half_life_s=120.0)

events = st.lists(
    st.tuples(
        st.integers(1, 6),
        st.integers(0, 2),
        st.integers(NOW_MS - 900_000, NOW_MS + 60_000),
        st.booleans(),
    ),
    max_size=40,
)


def rows_of(log: list[Event]) -> Rows:
    rows = np.zeros(len(log), INTERACTION)
    for row, (item, tag, time_ms, disliked) in zip(rows, log, strict=True):
        row["item_id"], row["tag"], row["event_time_ms"] = item, tag, time_ms
        row["kinds"] = disliked << INTERACTION_KIND_DISLIKE
    return rows


def add(
    counts: PartitionCounts, log: list[Event], start: int, end: int, users: list[str] | None = None
) -> None:
    """Each event is another user's, unless `users` says whose."""
    keys = [f"user-{offset}".encode() for offset in range(start, end)]
    if users is not None:
        keys = [user.encode() for user in users[start:end]]
    offsets, rows = np.arange(start, end), rows_of(log[start:end])
    counts.add(Arrivals(0, Position(end, 0), keys, offsets, rows), NOW_MS)


def weights(counts: PartitionCounts, now_ms: int) -> dict[tuple[int, int], float]:
    record = counts.trending(0, now_ms)
    return dict(zip(zip(record.item_ids, record.tags, strict=True), record.weights, strict=True))


@given(events, st.lists(st.integers(0, 40), max_size=4), st.integers(0, 400_000), st.data())
def test_counts_of_batches_replays_and_restarts_are_those_of_the_log(
    log: list[Event], cuts: list[int], later_ms: int, data: st.DataObject
) -> None:
    counts = PartitionCounts(CONFIG)
    position = 0
    for cut in [*sorted(min(cut, len(log)) for cut in cuts), len(log)]:
        start = data.draw(st.integers(0, position))  # what was counted is delivered again
        add(counts, log, start, cut)
        position = max(position, cut)
        if data.draw(st.booleans()):  # a restart, from the table
            stored = {start: window.encode() for start, window in counts.windows.items()}
            counts = PartitionCounts(
                CONFIG, {start: Window.decode(value) for start, value in stored.items()}
            )
        weights(counts, NOW_MS)  # fills what is kept of closed windows
    now_ms = NOW_MS + later_ms
    expected = weights_of_log(log_within(log), CONFIG, now_ms)
    assert weights(counts, now_ms) == pytest.approx(expected)
    assert counts.trending(0, now_ms).total_weight == pytest.approx(sum(expected.values()))
    counts.expire(now_ms)
    assert weights(counts, now_ms) == pytest.approx(expected)


def log_within(log: list[Event]) -> list[Event]:
    """Events that were not too old when they were counted."""
    return [event for event in log if event[2] - event[2] % 60_000 >= NOW_MS - 600_000]


def test_weights_fade_with_the_clock_and_old_windows_go() -> None:
    counts = PartitionCounts(CONFIG)
    start_ms = NOW_MS - NOW_MS % 60_000
    add(counts, [(1, 0, start_ms, False)] * 8, 0, 8)
    assert weights(counts, start_ms)[1, 0] == 8
    assert weights(counts, start_ms + 120_000)[1, 0] == pytest.approx(4)
    assert weights(counts, start_ms + 600_000)[1, 0] == pytest.approx(0.25)
    assert weights(counts, start_ms + 600_001) == {}
    assert counts.expire(start_ms + 600_001) == [start_ms]
    assert counts.windows == {}


def test_the_heaviest_over_all_and_of_each_tag() -> None:
    config = TrendingConfig(max_items=2, max_items_per_tag=1, max_tags=2)
    counts = PartitionCounts(config)
    log = [(1, 1, NOW_MS, False)] * 9 + [(2, 1, NOW_MS, False)] * 8 + [(3, 1, NOW_MS, False)] * 7
    log += [(4, 2, NOW_MS, False)] * 3 + [(5, 2, NOW_MS, False)] * 2 + [(6, 3, NOW_MS, False)]
    add(counts, log, 0, len(log))
    record = counts.trending(7, NOW_MS)
    assert list(record.item_ids) == [1, 2, 4]  # two over all, then the first of the second tag
    assert record.partition == 7
    assert record.total_weight == pytest.approx(sum(weights_of_log(log, config, NOW_MS).values()))


def test_a_window_keeps_its_heaviest_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trending_counts, "MAX_PAIRS_PER_WINDOW", 2)
    counts = PartitionCounts(CONFIG)
    log = [(item, 0, NOW_MS, False) for item in (1, 2, 2, 3, 3, 3)]
    add(counts, log, 0, 6)
    assert set(weights(counts, NOW_MS)) == {(2, 0), (3, 0)}


def test_a_damaged_value_is_refused() -> None:
    for value in (b"\xff", b"\x12\x01\x05"):
        with pytest.raises(StreamError):
            Window.decode(value)


@given(events, st.lists(st.sampled_from(["ann", "bob", "cy"]), min_size=40, max_size=40), st.data())
def test_a_user_counts_once_for_an_item_in_a_half_life(
    log: list[Event], users: list[str], data: st.DataObject
) -> None:
    counts = PartitionCounts(CONFIG)
    cut = data.draw(st.integers(0, len(log)))
    add(counts, log, 0, cut, users)
    add(counts, log, cut, len(log), users)
    seen, once = set(), []
    for event, user in zip(log, users, strict=False):
        if not event[3] and event[2] - event[2] % 60_000 >= NOW_MS - 600_000:
            triple = (user, event[0], event[2] // 120_000)
            once += [] if triple in seen else [event]
            seen.add(triple)
    assert weights(counts, NOW_MS) == pytest.approx(weights_of_log(once, CONFIG, NOW_MS))


def test_nobody_makes_an_item_trend_alone() -> None:
    """A thousand times in a window, and a thousand times over all windows, at any tag."""
    for spread_ms in (1, 600):
        counts = PartitionCounts(CONFIG)
        log = [(7, n % 3, NOW_MS - n * spread_ms, False) for n in range(1_000)][::-1]
        log += [(8, 0, NOW_MS, False)] * 4
        add(counts, log, 0, len(log), ["bot"] * 1_000 + ["ann", "bob", "cy", "di"])
        found = weights(counts, NOW_MS)
        assert sum(weight for (item, _), weight in found.items() if item == 7) < CONFIG.min_weight
        assert found[8, 0] > CONFIG.min_weight


def test_a_full_table_forgets_and_never_takes_one_for_another() -> None:
    table = CountedUsers(64)
    items, periods = np.full(500, 7, np.uint64), np.zeros(500, np.int64)
    users = [f"user-{n}".encode() for n in range(500)]
    assert table.first(users, items, periods).all()
    assert not table.first(users[-1:], items[:1], periods[:1]).any()
    assert table.first(users[-1:], items[:1] + 1, periods[:1]).all()
    assert table.first(users[-1:], items[:1], periods[:1] + 1).all()
    assert table.first(users, items, periods).sum() > 400


def test_a_table_with_room_is_exact() -> None:
    table = CountedUsers(1 << 12)
    random = np.random.default_rng(3)
    users = [f"user-{n}".encode() for n in random.integers(0, 40, 3_000)]
    items = random.integers(1, 30, 3_000).astype(np.uint64)
    found = table.first(users, items, np.zeros(3_000, np.int64))
    seen: set[tuple[bytes, int]] = set()
    for triple, new in zip(zip(users, items.tolist(), strict=True), found.tolist(), strict=True):
        assert new == (triple not in seen)
        seen.add(triple)
