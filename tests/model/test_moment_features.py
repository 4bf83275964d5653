"""What the moment of a request says: equal to a slow twin, told per quarter of an hour, the same in training and serving."""

from math import cos, log1p, pi

import numpy as np
import pytest
import torch

from model.bundle import Bundle
from model.moment_features import NUM_MOMENT_FEATURES, moment_features
from model.query import Query
from model.recommender import Recommender
from model.training.batches import BatchBuilder
from model.training.histories import build_histories
from state.event_log import EventLog
from state.item_statistics import DAY_MS, SLOT_MS, statistics_of
from state.user_state import UserMeta, UserState
from tests.model.worlds import SMALL, make_rows

MONDAY_MS = 1_699_833_600_000  # 2023-11-13T00:00Z
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def builder(event_log: EventLog, bundle: Bundle) -> BatchBuilder:
    histories = build_histories(event_log)
    return BatchBuilder(histories, bundle.catalogue, SMALL.network, SMALL.history, 100)


def test_moments_equal_the_slow_twin() -> None:
    rows = make_rows(5)
    rows["item_id"], rows["kinds"] = [1, 2, 1, 1, 2], 2
    rows["event_time_ms"] = MONDAY_MS + np.array([8, 20, 32, 56, 61]) * HOUR_MS
    asked_ms = MONDAY_MS + 80 * HOUR_MS
    statistics = statistics_of(rows)
    found = moment_features(statistics.history, statistics.items, asked_ms + 17 * 60_000)
    hours = {1: [8, 32, 56], 2: [20, 61], None: [8, 20, 32, 56, 61]}
    asked_h = 80.25  # the quarter of an hour begins

    def fits(of: int | None) -> list[float]:
        return [
            sum(cos(2 * pi * (asked_h - hour) / period) for hour in hours[of])
            / (len(hours[of]) + 1)
            for period in (24, 12, 8, 168, 84)
        ]

    for item, features in zip((1, 2), found, strict=True):
        expected = [*fits(item), *fits(None), log1p((asked_h - 61) / 24)]
        np.testing.assert_allclose(features, expected, atol=0.02)  # phases are in 128ths


def test_what_comes_at_breakfast_fits_breakfast() -> None:
    rows = make_rows(20)
    rows["kinds"] = 2
    rows["item_id"] = np.tile([1, 2], 10)
    days = np.repeat(np.arange(10), 2) * DAY_MS
    rows["event_time_ms"] = MONDAY_MS + days + np.tile([8, 20], 10) * HOUR_MS
    statistics = statistics_of(rows)
    for hour, better in ((8, 0), (20, 1)):
        found = moment_features(
            statistics.history, statistics.items, MONDAY_MS + 11 * DAY_MS + hour * HOUR_MS
        )
        assert found[better, 0] > 0.9 > -0.9 > found[1 - better, 0]


def test_who_was_away_for_years_is_away_for_weeks() -> None:
    statistics = statistics_of(make_rows(4))
    newest_ms = int(statistics.history["last_time_ms"][0])
    away = [
        moment_features(statistics.history, statistics.items, newest_ms + days * DAY_MS)[:, -1]
        for days in (-3, 0, 28, 29, 4_000)
    ]
    assert away[0].tolist() == away[1].tolist() == [0.0] * len(statistics.items)
    assert away[2] == pytest.approx(away[4], abs=1e-3)  # the quarter of an hour began before
    assert away[3] == pytest.approx(log1p(28))
    assert away[3].tolist() == away[4].tolist()


def test_training_tells_the_time_of_the_basket(builder: BatchBuilder) -> None:
    cuts = builder.histories.held_out_cuts[:4]
    candidates, _ = builder.repeats(cuts)
    for row, cut in enumerate(cuts.tolist()):
        rows = builder.histories.rows[builder.histories.user_start[cut] : cut]
        statistics = builder._statistics(cut)
        asked_ms = int(builder.histories.rows["event_time_ms"][cut])
        real = candidates.real[row] & ~candidates.new[row]
        ids = builder.catalogue.item_ids[candidates.items[row][real]]
        items = statistics.items[np.isin(statistics.items["item_id"], ids)]
        expected = moment_features(statistics_of(rows).history, items, asked_ms)
        found = candidates.features[row][real][:, -NUM_MOMENT_FEATURES:]
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_context_is_scored_anew_in_another_quarter_of_an_hour(bundle: Bundle) -> None:
    rows = make_rows(30)
    rows["item_id"], rows["kinds"] = bundle.catalogue.item_ids[:30], 2
    tail_start = SMALL.history.tail_start(30)
    meta = UserMeta(length=30, lifecycle_boundary=0, tail_start=tail_start)
    recommender = Recommender(bundle)
    context = recommender.encode_state(UserState("someone", meta, rows, None))
    slot_ms = int(rows["event_time_ms"].max()) // SLOT_MS * SLOT_MS + 5 * SLOT_MS
    evidence = []
    for time_ms in (slot_ms, slot_ms + SLOT_MS - 1, slot_ms + SLOT_MS, slot_ms, None):
        query = Query(k=3, time_ms=time_ms)
        kept = recommender.answer([context], [query])
        alone = recommender.encode_state(UserState("someone", meta, rows, None))
        assert kept == recommender.answer([alone], [query])
        assert context.evidence is not None
        evidence.append(context.evidence)
    assert evidence[0] is evidence[1]
    assert len({id(one) for one in evidence}) == 4
    scores = [one.evidence.scores for one in evidence]
    assert torch.equal(scores[0], scores[3])
    assert not torch.equal(scores[0], scores[2])
