"""Popularity as of a moment: training reads it off the log, serving is told it, and both say the same."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from model.bundle import Bundle, load_bundle
from model.errors import ModelConfigError
from model.features import hash_buckets
from model.popularity import AT_TRAINING_END, Popularity
from model.query import Query
from model.recommender import Recommender
from model.repeats import RepeatConfig
from model.training.batches import BatchBuilder
from model.training.evaluate import rank_at
from model.training.histories import Histories, build_histories
from model.training.popularity_log import PopularityLog
from state.event_log import EventLog
from state.interaction import DISLIKE_MASK, INTERACTION
from tests.model.test_recommender import state_of
from tests.model.worlds import HOUR_MS, SMALL, START_MS

BUCKETS, HALF_LIFE_S = 7, 3_600.0


def plain_counts(histories: Histories, time_ms: int) -> dict[int, float]:
    """Row by row: what PopularityLog knows of that moment."""
    counts: dict[int, float] = {}
    counted = set()
    for user, row in zip(histories.users.tolist(), histories.rows, strict=True):
        item, event_ms = int(row["item_id"]), int(row["event_time_ms"])
        key = user, item, event_ms // HOUR_MS
        if event_ms >= time_ms or row["kinds"] & DISLIKE_MASK or key in counted:
            continue
        counted.add(key)
        bucket = int(hash_buckets(np.array([item], np.uint64), BUCKETS)[0])
        weight = 2 ** (-(time_ms - event_ms) / HOUR_MS)
        counts[bucket] = counts.get(bucket, 0.0) + weight
    return counts


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), num_rows=st.integers(6, 60), hours=st.integers(1, 40))
def test_any_moment_is_what_a_loop_over_the_log_gives(seed: int, num_rows: int, hours: int) -> None:
    random = np.random.default_rng(seed)
    rows = np.zeros(num_rows, INTERACTION)
    rows["item_id"] = random.integers(1, 9, num_rows)
    rows["event_time_ms"] = START_MS + np.sort(random.integers(0, hours * HOUR_MS, num_rows))
    rows["kinds"] = random.choice([2, 2, 2, DISLIKE_MASK], num_rows)
    users, names = random.integers(0, 2, num_rows), ["a", "b"]
    log = EventLog(names, users, [str(i) for i in range(num_rows)], rows)
    try:
        histories = build_histories(log)
    except Exception as error:  # nobody has three baskets
        assert "three baskets" in str(error)  # noqa: PT017
        return
    popularity = PopularityLog(histories, BUCKETS, HALF_LIFE_S)
    times = np.append(random.choice(rows["event_time_ms"], 5), [START_MS - 1, START_MS + 10**9])
    every_row = torch.arange(BUCKETS).expand(len(times), -1)
    found = popularity.at(every_row, times)
    for row, time_ms in zip(found, times.tolist(), strict=True):
        expected = plain_counts(histories, time_ms)
        assert row.tolist() == pytest.approx([expected.get(i, 0.0) for i in range(BUCKETS)])


def test_a_log_of_dislikes_makes_nothing_popular(event_log: EventLog) -> None:
    histories = build_histories(event_log)
    histories.rows["kinds"] |= DISLIKE_MASK
    popularity = PopularityLog(histories, BUCKETS, HALF_LIFE_S)
    assert popularity.at(torch.arange(BUCKETS)[None], np.array([START_MS])).tolist() == [[0.0] * 7]


def test_a_half_life_is_a_second_at_least() -> None:
    with pytest.raises(ModelConfigError, match="popularity_half_life_s of repeats is 0"):
        RepeatConfig(popularity_half_life_s=0)


def test_counts_are_kept_by_row() -> None:
    ids = np.array([1, 2, 3], np.uint64)
    one = Popularity.of(np.append(ids, ids[:1]), np.array([1.0, 2.0, 3.0, 4.0]), 0.0, 100_003)
    rows = torch.from_numpy(hash_buckets(ids, 100_003))
    counts = one.of_rows(rows[None])
    assert counts is not None
    assert counts.tolist() == [[5.0, 2.0, 3.0]]
    assert Popularity.of(ids[:0], np.zeros(0), 9.0, 100_003) is AT_TRAINING_END
    assert AT_TRAINING_END.of_rows(rows) is None


def test_the_training_end_is_the_moment_behind_its_log(bundle: Bundle, event_log: EventLog) -> None:
    repeats = bundle.network.config.repeats
    histories = build_histories(event_log, SMALL.num_held_out, SMALL.seed)
    log = PopularityLog(histories, 257, repeats.popularity_half_life_s)
    trainable = np.arange(len(histories.rows)) < histories.train_end
    end_ms = histories.rows["event_time_ms"][trainable].max() + 1
    expected = log.at(torch.arange(257)[None], np.array([end_ms]))[0]
    torch.testing.assert_close(bundle.network.repeats.popularity, expected)
    assert float(expected.max()) > 0


def test_scores_served_are_the_offline_ones_of_the_moment(
    bundle_path: Path, event_log: EventLog
) -> None:
    """Told what the log says of a moment, a recommender ranks as offline; untold, as at the training's end."""
    bundle, histories = load_bundle(bundle_path), build_histories(event_log)
    network = bundle.network
    torch.manual_seed(0)
    for parameter in network.repeats.score.parameters():  # popularity must matter
        torch.nn.init.normal_(parameter)
    builder = BatchBuilder(histories, bundle.catalogue, network.config, bundle.history, 1_000)
    lengths = histories.train_cuts - histories.user_start[histories.train_cuts]
    cuts = histories.train_cuts[(lengths > 8) & (lengths <= 16)][:5]
    recommender, differ = Recommender(bundle), 0
    at_end = list(rank_at(network, bundle.trie, builder, cuts, 1_000))
    log = builder.follow_popularity()
    live = list(rank_at(network, bundle.trie, builder, cuts, 1_000))
    ids = bundle.catalogue.item_ids
    for cut, ended, now in zip(cuts.tolist(), at_end, live, strict=True):
        context = recommender.encode_state(
            state_of(histories.rows[histories.user_start[cut] : cut])
        )
        for told, expected in ((False, ended), (True, now), (False, ended)):
            rows = torch.from_numpy(hash_buckets(ids, SMALL.network.features.item_buckets))
            time_ms = histories.rows["event_time_ms"][[cut]]
            query = Query(k=len(ids), beam_width=1_000, time_ms=int(time_ms[0]))
            distinct, first = np.unique(rows.numpy(), return_index=True)
            counts = log.at(torch.from_numpy(distinct)[None], time_ms)[0].double().numpy()
            recommender.set_popularity(ids[first] if told else ids[:0], counts[: len(first) * told])
            (found,) = recommender.answer([context], [query])
            assert [one.item.item_id for one in found] == ids[expected].tolist()
        differ += ended.tolist() != now.tolist()
    assert differ
