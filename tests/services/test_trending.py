"""Merging what partitions say, and the rule that completes answers."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from model.catalogue import CatalogueItem
from model.query import ItemFilter, Query, Recommended, Source
from protos.trending_pb2 import PartitionTrending
from services.cold_start import ColdStart
from services.trending import Trending, TrendingItems, merge
from stream.trending_counts import PartitionCounts, TrendingConfig
from tests.services.nodes import FakeRecommender
from tests.stream.test_trending_counts import NOW_MS, add
from tests.stream.trending import Event, weights_of_log

ALL = TrendingConfig(window_s=60, keep_s=3_600.0, half_life_s=120.0, min_weight=0.0)

logs = st.lists(
    st.lists(
        st.tuples(
            st.integers(1, 8),
            st.integers(0, 2),
            st.integers(NOW_MS - 600_000, NOW_MS),
            st.booleans(),
        ),
        max_size=30,
    ),
    min_size=1,
    max_size=4,
)


def records_of(
    logs: list[list[Event]], config: TrendingConfig, as_of_ms: list[int]
) -> list[PartitionTrending]:
    records = []
    for partition, log in enumerate(logs):
        counts = PartitionCounts(config)
        add(counts, log, 0, len(log))
        records.append(counts.trending(partition, as_of_ms[partition]))
    return records


def by_item(weights: dict[tuple[int, int], float], tag: int | None = None) -> dict[int, float]:
    items: dict[int, float] = {}
    for (item, of_tag), weight in weights.items():
        if tag is None or of_tag == tag:
            items[item] = items.get(item, 0.0) + weight
    return items


def as_dict(items: TrendingItems) -> dict[int, float]:
    return dict(zip(items.item_ids.tolist(), items.weights.tolist(), strict=True))


@given(logs, st.data())
def test_merged_is_what_the_whole_log_gives(logs: list[list[Event]], data: st.DataObject) -> None:
    as_of_ms = [data.draw(st.integers(NOW_MS, NOW_MS + 60_000)) for _ in logs]
    now_ms = NOW_MS + 60_000 + data.draw(st.integers(0, 300_000))
    records = records_of(logs, ALL, as_of_ms)
    whole = weights_of_log([event for log in logs for event in log], ALL, now_ms)
    merged = merge(records, ALL, now_ms)
    assert as_dict(merged) == pytest.approx(by_item(whole))
    assert (np.diff(merged.weights) <= 0).all()
    assert merged.total_weight == pytest.approx(sum(whole.values()))
    for tag in range(3):
        assert as_dict(merge(records, ALL, now_ms, tag)) == pytest.approx(by_item(whole, tag))


@given(logs)
def test_what_short_lists_miss_is_bounded_by_what_they_left_out(logs: list[list[Event]]) -> None:
    short = TrendingConfig(
        window_s=60, keep_s=3_600.0, half_life_s=120.0, max_items=2, max_tags=0, min_weight=0.0
    )
    records = records_of(logs, short, [NOW_MS] * len(logs))
    whole = by_item(weights_of_log([event for log in logs for event in log], short, NOW_MS))
    merged = as_dict(merge(records, short, NOW_MS))
    missing = 3 * sum(record.weights[-1] for record in records if len(record.weights) == 2)
    for item, weight in whole.items():
        assert weight - missing - 1e-9 <= merged.get(item, 0.0) <= weight + 1e-9


def test_light_items_do_not_trend_and_silent_partitions_fade() -> None:
    config = TrendingConfig(keep_s=3_600.0, half_life_s=120.0, min_weight=1.0)
    clock = [NOW_MS]
    trending = Trending(config, lambda: clock[0])
    assert len(trending.items().item_ids) == 0
    assert trending.age_s() is None
    for partition, weights in enumerate(([4.0, 0.7], [0.7, 0.2])):
        trending.hear(
            PartitionTrending(
                partition=partition,
                as_of_ms=NOW_MS,
                half_life_ms=120_000,
                total_weight=6.0,
                item_ids=[1, 2] if partition == 0 else [2, 3],
                tags=[0, 0],
                weights=weights,
            )
        )
    clock[0] += 1_000
    assert trending.items().item_ids.tolist() == [1, 2]
    assert trending.items().log_shares.tolist() == pytest.approx(np.log([4 / 12, 1.4 / 12]))
    clock[0] = NOW_MS + 120_000
    assert trending.items().item_ids.tolist() == [1]
    assert trending.age_s() == 120
    clock[0] = NOW_MS + 300_000
    assert trending.items().item_ids.tolist() == []


def trending_items(*item_ids: int) -> TrendingItems:
    weights = np.arange(len(item_ids), 0, -1).astype(float)
    return TrendingItems(np.array(item_ids, np.uint64), weights, float(weights.sum()))


def answer(
    num_interactions: int, *found: int, k: int = 4, exclude: frozenset[int] = frozenset()
) -> list[tuple[int, Source]]:
    """Items 11, 12 and 13 trend; the catalogue does not know the heaviest one."""
    rule = ColdStart(FakeRecommender(), lambda: trending_items(5_000, 11, 12, 13), 4)
    personal = [Recommended(CatalogueItem(item), -1.0, (1,)) for item in found]
    query = Query(k=k, filter=ItemFilter(exclude=exclude))
    filled = rule.fill(query, personal, num_interactions)
    assert sum(rule.served.values()) == len(filled)
    return [(each.item.item_id, each.source) for each in filled]


P, T, Q = Source.PERSONAL, Source.TRENDING, Source.POPULAR


def test_without_state_what_trends_comes_before_what_is_popular() -> None:
    assert answer(0) == [(11, T), (12, T), (13, T), (900, Q)]
    assert answer(0, exclude=frozenset({11, 900})) == [(12, T), (13, T), (901, Q), (902, Q)]


def test_a_short_history_vouches_for_part_of_the_answer() -> None:
    assert answer(1, 1, 2, 3, 4) == [(1, P), (11, T), (12, T), (13, T)]
    assert answer(2, 12, 2, 3, 4) == [(12, P), (2, P), (11, T), (13, T)]
    assert answer(4, 1, 2, 3, 4) == [(1, P), (2, P), (3, P), (4, P)]
    only_11 = frozenset({12, 13})
    assert answer(1, 1, 2, 3, 4, exclude=only_11) == [(1, P), (11, T), (2, P), (3, P)]


def test_too_few_personal_items_are_filled_up() -> None:
    assert answer(9, 1, 11) == [(1, P), (11, P), (12, T), (13, T)]


def test_when_nothing_trends_the_popular_items_fill() -> None:
    rule = ColdStart(FakeRecommender(), trending_items, 4)
    filled = rule.fill(Query(k=2), [], 0)
    assert [(each.item.item_id, each.source) for each in filled] == [(900, Q), (901, Q)]
