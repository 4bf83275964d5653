"""Item statistics: equal to a slow twin, for any split of a history; bounded by strength; bytes that stay readable."""

from itertools import pairwise
from math import cos, pi, sin
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, strategies as st

from state.errors import CorruptValue, UnknownFormat
from state.interaction import DISLIKE_MASK, INTERACTION, Rows, are_dislikes
from state.item_statistics import (
    DAY_MS,
    HALF_LIVES_DAYS,
    STATISTICS,
    VISIT_GAP_MS,
    ItemStatistics,
    bounded,
    decayed_counts,
    empty_statistics,
    merge_statistics,
    statistics_of,
    strongest,
)
from state.item_statistics_codec import decode_statistics, encode_statistics

START_MS = 1_700_000_000_000
GOLDEN = Path(__file__).parent / "golden"

gaps = st.sampled_from([0, 1, VISIT_GAP_MS, VISIT_GAP_MS + 1, DAY_MS, 40 * DAY_MS])
steps = st.lists(st.tuples(gaps, st.sampled_from([1, 2, 3, 4, 5, 6, -1, -2, -5])), max_size=24)


def rows_of(parts: list[tuple[int, int]]) -> Rows:
    """From pairs of time since the interaction before, in ms, and item; less than 0: a DISLIKE of it."""
    rows = np.zeros(len(parts), INTERACTION)
    rows["item_id"] = [abs(item) for _, item in parts]
    rows["kinds"] = [2 if item > 0 else 2 | DISLIKE_MASK for _, item in parts]
    rows["event_time_ms"] = START_MS + np.cumsum([gap for gap, _ in parts], dtype=np.int64)
    return rows


def num_visits(times: list[int]) -> int:
    return 1 + sum(later - earlier > VISIT_GAP_MS for earlier, later in pairwise(times))


def described(times: list[int], history: list[int]) -> tuple[object, ...]:
    """The slow twin: one item from the sorted times of its interactions and of the whole history."""
    last = times[-1]
    decayed = [sum(0.5 ** ((last - t) / DAY_MS / days) for t in times) for days in HALF_LIVES_DAYS]
    last_visit = num_visits([t for t in history if t <= last])
    phases = [
        sum(round(128 * f(angle(t, p))) for t in times) for f in (cos, sin) for p in PERIODS_H
    ]
    return times[0], last, len(times), num_visits(times), last_visit, phases, pytest.approx(decayed)


PERIODS_H = (24, 12, 8, 168, 84)


def angle(time_ms: int, period_h: int) -> float:
    """Where the time's quarter of an hour begins on the circle of the period; the week began at the epoch."""
    quarter = time_ms // 900_000 % (7 * 24 * 4)
    return 2 * pi * (quarter / 4) / period_h


def check(statistics: ItemStatistics, rows: Rows) -> None:
    assert dict(statistics.disliked.tolist()) == disliked_at_last(rows)
    assert np.all(np.diff(statistics.disliked["item_id"].astype(np.int64)) > 0)
    rows = rows[~are_dislikes(rows)]
    history = sorted(rows["event_time_ms"].tolist())
    expected = {0: described(history, history)} if history else {}
    for item in np.unique(rows["item_id"]).tolist():
        times = sorted(rows["event_time_ms"][rows["item_id"] == item].tolist())
        expected[item] = described(times, history)
    found = {
        int(record["item_id"]): (
            *(int(v) for v in record.tolist()[1:6]),
            record["phases"].tolist(),
            list(record["decayed"]),
        )
        for record in np.concatenate([statistics.history, statistics.items])
    }
    assert found == expected


def disliked_at_last(rows: Rows) -> dict[int, int]:
    """The slow twin: items whose newest interaction is a DISLIKE, and when it was."""
    newest: dict[int, tuple[int, bool]] = {}
    for item, time_ms, kinds in rows[["item_id", "event_time_ms", "kinds"]].tolist():
        found = (time_ms, bool(kinds & DISLIKE_MASK))
        newest[item] = max(newest.get(item, (0, False)), found)
    return {item: time_ms for item, (time_ms, disliked) in newest.items() if disliked}


def same(one: ItemStatistics, two: ItemStatistics) -> None:
    assert np.array_equal(one.disliked, two.disliked)
    for a, b in ((one.history, two.history), (one.items, two.items)):
        for name in STATISTICS.names or ():
            np.testing.assert_allclose(a[name], b[name], rtol=1e-12)


@given(steps, st.randoms())
def test_statistics_equal_the_slow_twin_in_any_order(
    parts: list[tuple[int, int]], random: Random
) -> None:
    rows = rows_of(parts)
    order = list(range(len(rows)))
    random.shuffle(order)
    check(statistics_of(rows[order]), rows)


@given(steps, st.lists(st.integers(0, 40), max_size=6))
def test_any_split_merges_to_the_whole(parts: list[tuple[int, int]], cuts: list[int]) -> None:
    rows = rows_of(parts)
    borders = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    pieces = [statistics_of(rows[a:b]) for a, b in pairwise(borders)]
    rolled = empty_statistics()
    for piece in pieces:
        rolled = merge_statistics(rolled, piece)
    check(rolled, rows)
    folded = empty_statistics()
    for piece in reversed(pieces):
        folded = merge_statistics(piece, folded)
    same(folded, rolled)


@given(steps, st.integers(1, 6))
def test_a_forgotten_item_leaves_what_was_never_seen(
    parts: list[tuple[int, int]], item: int
) -> None:
    rows = rows_of(parts)
    kept = rows[rows["item_id"] != item]
    check(merge_statistics(statistics_of(kept[:7]), statistics_of(kept[7:])), kept)


@given(steps, st.randoms())
def test_dislikes_do_not_depend_on_the_order_of_arrival(
    parts: list[tuple[int, int]], random: Random
) -> None:
    """Late interactions lie in other stretches than their time says."""
    rows = rows_of(parts)
    order = list(range(len(rows)))
    random.shuffle(order)
    rolled = empty_statistics()
    for start in range(0, len(rows), 5):
        rolled = merge_statistics(rolled, statistics_of(rows[order[start : start + 5]]))
    assert dict(rolled.disliked.tolist()) == disliked_at_last(rows)


def test_a_dislike_that_the_bound_drops_takes_its_item_along() -> None:
    rows = rows_of([(0, 1), (DAY_MS, -1), (DAY_MS, 2), (DAY_MS, -3), (DAY_MS, -2)])
    kept = bounded(statistics_of(rows), 2)
    assert kept.disliked["item_id"].tolist() == [2, 3]
    assert kept.items["item_id"].tolist() == [2]


@given(steps, st.integers(1, 8), st.integers(0, 4000))
def test_the_strongest_are_the_same_whenever_one_looks(
    parts: list[tuple[int, int]], max_items: int, days: int
) -> None:
    statistics = statistics_of(rows_of(parts))
    items = statistics.items
    kept = strongest(items, max_items)
    assert len(kept) == min(max_items, len(items))
    assert np.all(np.diff(kept["item_id"].astype(np.int64)) > 0)
    if len(kept) < len(items):
        now = int(items["last_time_ms"].max()) + days * DAY_MS
        counts = decayed_counts(items, np.full(len(items), now))[:, -1]
        inside = np.isin(items["item_id"], kept["item_id"])
        assert counts[inside].min() >= counts[~inside].max() * (1 - 1e-9)
    assert bounded(statistics, max_items).history is statistics.history


@given(steps)
def test_a_bound_that_is_not_reached_changes_nothing(parts: list[tuple[int, int]]) -> None:
    rows, rolled = rows_of(parts), empty_statistics()
    for start in range(0, len(rows), 4):
        rolled = bounded(merge_statistics(rolled, statistics_of(rows[start : start + 4])), 6)
    check(rolled, rows)


def test_what_the_bound_drops_begins_anew() -> None:
    day = DAY_MS
    rows = rows_of([(0, 1), (day, 2), (day, 2), (day, 1)])
    rolled = bounded(statistics_of(rows[:3]), 1)
    rolled = merge_statistics(rolled, statistics_of(rows[3:]))
    assert rolled.items["count"].tolist() == [1, 2]
    assert rolled.history["count"].tolist() == [4]


def test_a_late_interaction_keeps_counts_and_times() -> None:
    rows = rows_of([(0, 1), (DAY_MS, 2), (DAY_MS, 1), (DAY_MS, 2)])
    merged = merge_statistics(statistics_of(rows[1:3]), statistics_of(rows[[0, 3]]))
    whole = statistics_of(rows)
    for name in ("item_id", "first_time_ms", "last_time_ms", "count", "decayed", "phases"):
        np.testing.assert_allclose(merged.items[name], whole.items[name])


@given(steps)
def test_statistics_come_back_from_their_bytes(parts: list[tuple[int, int]]) -> None:
    statistics = statistics_of(rows_of(parts))
    decoded = decode_statistics(encode_statistics(statistics))
    assert np.array_equal(decoded.history, statistics.history)
    assert np.array_equal(decoded.items, statistics.items)
    assert np.array_equal(decoded.disliked, statistics.disliked)
    assert encode_statistics(statistics)[0] == (4 if len(statistics.disliked) else 3)


@given(st.data())
def test_damage_is_found(data: st.DataObject) -> None:
    encoded = encode_statistics(statistics_of(rows_of([(0, 1), (DAY_MS, -2), (DAY_MS, 1)])))
    damaged = bytearray(encoded)
    bit = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises((CorruptValue, UnknownFormat)):
        decode_statistics(bytes(damaged))
    with pytest.raises(CorruptValue):
        decode_statistics(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


LIKED = [(0, 2**64 - 1), (60_000, 7), (9 * DAY_MS, 7), (DAY_MS, 5)]
DISLIKED = [(0, 7), (60_000, 2**40), (9 * DAY_MS, -7), (DAY_MS, -5)]


@pytest.mark.parametrize(("version", "parts"), [(3, LIKED), (4, DISLIKED)])
def test_bytes_of_every_version_stay_readable(version: int, parts: list[tuple[int, int]]) -> None:
    golden = (GOLDEN / f"item_statistics_v{version}.bin").read_bytes()
    assert golden[0] == version
    found, expected = decode_statistics(golden), statistics_of(rows_of(parts))
    assert encode_statistics(expected) == golden
    assert np.array_equal(found.history, expected.history)
    assert np.array_equal(found.items, expected.items)
    assert np.array_equal(found.disliked, expected.disliked)


def test_five_hundred_items_take_a_few_kilobytes() -> None:
    random = np.random.default_rng(0)
    parts = zip(
        random.integers(0, DAY_MS, 5_000), random.zipf(1.2, 5_000).clip(max=5_000), strict=True
    )
    statistics = bounded(statistics_of(rows_of([(int(g), int(i)) for g, i in parts])), 512)
    assert len(encode_statistics(statistics)) < 30_000
