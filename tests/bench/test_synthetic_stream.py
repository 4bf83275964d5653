"""The synthetic stream: what it promises of causes, reaches, disorder and bytes."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from bench.quality.synthetic.event_stream import parts, topics_of, write_stream
from bench.quality.synthetic.lives import Life, live
from bench.quality.synthetic.oracle import Oracle
from bench.quality.synthetic.stream_config import (
    EPISODE,
    LIFECYCLE,
    NOISE,
    PLANTED,
    SESSION,
    CauseWeights,
    StreamConfig,
    product_segments,
)
from model.training.replay import replay
from services.local_kafka import RunningKafka
from state.event_log import read_event_log
from state.segments import HistoryConfig
from stream.topics import TopicsConfig

SMALL = StreamConfig(num_users=24, min_length=300, max_length=400)
_SEGMENTS = HistoryConfig(recent_len=16, mid_term_len=80, chunk_len=16)


def lives_of(config: StreamConfig) -> list[Life]:
    return [live(config, topics_of(config), user) for user in range(config.num_users)]


def test_the_same_bytes_at_any_parallelism(tmp_path: Path) -> None:
    written = []
    for num_workers in (1, 2, 3):
        files = write_stream(SMALL, tmp_path / str(num_workers), num_workers)
        paths = (files.events, files.items, files.content, files.truth)
        written.append([path.read_bytes() for path in paths])
    assert written[0] == written[1] == written[2]


def test_another_seed_is_another_stream_and_more_users_change_nobody() -> None:
    first, more = lives_of(SMALL), lives_of(dataclasses.replace(SMALL, num_users=25))
    other = lives_of(dataclasses.replace(SMALL, seed=1))
    assert all(np.array_equal(a.items, b.items) for a, b in zip(first, more, strict=False))
    assert not any(np.array_equal(a.items, b.items) for a, b in zip(first, other, strict=True))


def test_users_come_one_part_at_a_time() -> None:
    endless = dataclasses.replace(SMALL, num_users=10**9)
    stream = parts(endless)
    assert len(set(next(stream).events["user_id"].to_pylist())) == 8
    assert len(set(next(stream).events["user_id"].to_pylist())) == 8


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    session=st.floats(0.0, 0.97),
    shares=st.tuples(*[st.floats(0.01, 1)] * 3),
    seed=st.integers(0, 2**63),
)
def test_causes_have_their_weights_and_lie_where_they_say(
    session: float, shares: tuple[float, float, float], seed: int
) -> None:
    episode, lifecycle, noise = (share * (1 - session) / sum(shares) for share in shares)
    weights = CauseWeights(session=session, episode=episode, lifecycle=lifecycle, noise=noise)
    config = StreamConfig(
        num_users=3, min_length=1_500, max_length=2_000, seed=seed, weights=weights
    )
    drawn, expected, variance = np.zeros(5), np.zeros(5), np.zeros(5)
    for life in lives_of(config):
        _check_evidence(config, life)
        assert (np.diff(life.times_ms) > 0).all()
        for place in np.flatnonzero(life.opens)[config.num_tastes :].tolist():
            shares_here = _opening_shares(config, life, place)
            drawn[life.causes[place]] += 1
            expected += shares_here
            variance += shares_here * (1 - shares_here)
        after = life.opens[config.num_tastes * config.burst_len + 1 :]
        opened = (1 - session) * len(after)
        assert abs(after.sum() - opened) <= 6 * np.sqrt(opened * session + 1)
    assert (np.abs(drawn - expected) <= 6 * np.sqrt(variance) + 1).all()


def _check_evidence(config: StreamConfig, life: Life) -> None:
    """By plain loops: what a cause says of the past is there."""
    opened_at = 0
    for place, (cause, reach) in enumerate(
        zip(life.causes.tolist(), life.reaches.tolist(), strict=True)
    ):
        assert bool(life.opens[place]) == (cause != SESSION)
        if cause == SESSION:
            assert 1 <= reach <= min(config.session_reach, place - opened_at)
        else:
            opened_at = place
        if cause == EPISODE:
            assert config.episode_reach[0] <= reach <= config.episode_reach[1]
        if cause in (SESSION, EPISODE, LIFECYCLE):
            assert life.topics[place] == life.topics[place - reach]
        if cause == LIFECYCLE:
            assert reach >= config.lifecycle_reach
            assert life.topics[place] in life.tastes
            assert life.topics[place] not in life.topics[place - reach + 1 : place]
        if cause in (PLANTED, NOISE):
            assert reach == 0


def _opening_shares(config: StreamConfig, life: Life, place: int) -> np.ndarray:
    """P(cause) of the session opened at `place`; plainly."""
    shares, weights = np.zeros(5), config.weights
    seen = set(life.topics[max(0, place - config.lifecycle_reach + 1) : place].tolist())
    if place >= config.episode_reach[0]:
        shares[EPISODE] = weights.episode / (1 - weights.session)
    if set(life.tastes.tolist()) - seen:
        shares[LIFECYCLE] = weights.lifecycle / (1 - weights.session)
    shares[NOISE] = 1 - shares.sum()
    return shares


def test_reaches_have_the_known_distributions() -> None:
    config = dataclasses.replace(SMALL, min_length=20_000, max_length=20_000, num_users=8)
    lives = lives_of(config)
    causes = np.concatenate([life.causes for life in lives])
    reaches = np.concatenate([life.reaches for life in lives])
    low, high = config.episode_reach
    episodes = reaches[causes == EPISODE]
    harmonic = np.append(0, np.cumsum(1 / np.arange(low, high + 1)))
    for reach in range(low, high + 1):
        share = harmonic[reach - low + 1] / harmonic[-1]
        assert abs((episodes <= reach).mean() - share) < 2 / np.sqrt(len(episodes))
    inside = np.concatenate([_inside(life) for life in lives])
    deep = reaches[(causes == SESSION) & (inside >= config.session_reach)]
    for reach in range(1, config.session_reach + 1):
        share = 2.0**-reach / (1 - 2.0**-config.session_reach)
        assert abs((deep == reach).mean() - share) < 4 * np.sqrt(share / len(deep))


def _inside(life: Life) -> np.ndarray:
    """Interactions of the session before each."""
    starts = np.flatnonzero(life.opens)
    places = np.arange(len(life.opens))
    return np.asarray(places - starts[np.cumsum(life.opens) - 1])


def test_lifecycle_targets_are_mostly_items_that_the_user_never_had() -> None:
    config = StreamConfig(num_users=40)
    fresh = [
        life.items[place] not in life.items[:place]
        for life in lives_of(config)
        for place in np.flatnonzero(life.causes == LIFECYCLE).tolist()
    ]
    assert len(fresh) > 100
    assert np.mean(fresh) > 0.8


def test_the_log_shows_what_is_planted_and_where_sessions_end() -> None:
    config = dataclasses.replace(SMALL, duplicate_rate=0.0, late_rate=0.0)
    topics, events = topics_of(config), next(parts(config)).events
    kinds, users = np.array(events["kinds"].to_pylist()), np.array(events["user_id"].to_pylist())
    for user, life in zip(np.unique(users), lives_of(config), strict=False):
        own, items = kinds[users == user], events["item_id"].to_numpy()[users == user]
        liked, closing = (np.char.find(own, word) >= 0 for word in ("like", "purchase"))
        assert (
            liked.tolist() == (np.arange(len(own)) < config.num_tastes * config.burst_len).tolist()
        )
        assert set(topics.topic_of_item[items[liked] - 1]) == set(life.tastes)
        assert closing[:-1].tolist() == life.opens[1:].tolist()


def test_items_are_drawn_as_their_probabilities_say_and_never_before_they_are_born() -> None:
    topics = topics_of(SMALL)
    only = np.zeros(SMALL.num_topics)
    only[3] = 1
    for day in (0.0, 100.0, 365.0):
        drawn = topics.draw(
            np.full(50_000, 3), np.full(50_000, day), (np.arange(50_000) + 0.5) / 50_000
        )
        shares = np.bincount(drawn, minlength=len(topics.item_ids)) / 50_000
        assert np.abs(shares - topics.probabilities(only, day)).max() < 1e-4
        assert (topics.births_KN.reshape(-1)[drawn] <= day).all()
    births = np.floor(topics.births_KN[topics.births_KN >= 0])
    assert len(np.unique(births)) == SMALL.num_days  # new items every day


def test_the_oracle_is_exact() -> None:
    """Topics that it gives p come up with frequency p; and the slow way says the same."""
    config = dataclasses.replace(SMALL, num_users=40, min_length=1_000, max_length=1_000)
    topics = topics_of(config)
    oracle = Oracle(config, topics)
    said, happened = [], []
    for life in lives_of(config):
        for place in np.flatnonzero(life.opens)[config.num_tastes :].tolist():
            shares = oracle.topic_probabilities(life, place)
            assert shares == pytest.approx(_plain_topics(config, life, place))
            said.append(shares)
            happened.append(np.arange(config.num_topics) == life.topics[place])
    chances, hits = np.concatenate(said), np.concatenate(happened)
    assert chances.reshape(-1, config.num_topics).sum(1) == pytest.approx(1)
    for low, high in ((0, 0.01), (0.01, 0.04), (0.04, 0.08), (0.08, 0.15), (0.15, 1)):
        here = (chances >= low) & (chances < high)
        spread = np.sqrt((chances[here] * (1 - chances[here])).sum())
        assert here.sum() > 50
        assert abs(hits[here].sum() - chances[here].sum()) < 4 * spread


def _plain_topics(config: StreamConfig, life: Life, place: int) -> np.ndarray:
    causes = _opening_shares(config, life, place)
    shares = causes[NOISE] * topics_of(config).popularity_K
    low, high = config.episode_reach
    reaches = range(low, min(high, place) + 1)
    for reach in reaches:
        weight = 1 / reach / sum(1 / other for other in reaches)
        shares[life.topics[place - reach]] += causes[EPISODE] * weight
    seen = life.topics[max(0, place - config.lifecycle_reach + 1) : place]
    waiting = [taste for taste in life.tastes.tolist() if taste not in seen]
    for taste in waiting:
        shares[taste] += causes[LIFECYCLE] / len(waiting)
    return np.asarray(shares)


def test_the_oracle_goes_on_with_open_sessions() -> None:
    life = lives_of(SMALL)[0]
    place = int(np.flatnonzero(~life.opens)[-1])
    items = Oracle(SMALL, topics_of(SMALL)).item_probabilities(life, place)
    assert items.sum() == pytest.approx(1)
    assert set(topics_of(SMALL).topic_of_item[items > 0]) == {life.topics[place]}


def test_duplicates_and_late_events_come_at_their_rates_and_the_fold_sorts_them_out(
    tmp_path: Path,
) -> None:
    config = dataclasses.replace(SMALL, duplicate_rate=0.05, late_rate=0.1)
    lives = lives_of(config)
    num_made = sum(len(life.items) for life in lives)
    files = write_stream(config, tmp_path)
    table = pyarrow.parquet.read_table(files.events)
    ids, times = table["event_id"].to_pylist(), table["event_time_ms"].to_numpy()
    assert len(set(ids)) == num_made
    assert len(ids) / num_made - 1 == pytest.approx(0.05, abs=0.01)
    users = np.array(table["user_id"].to_pylist())
    newest = np.concatenate([np.maximum.accumulate(times[users == u]) for u in np.unique(users)])
    assert (times < newest).mean() == pytest.approx(0.1 + 0.05, abs=0.03)
    log = replay(read_event_log(files.events), _SEGMENTS)
    for user, life in enumerate(lives):
        rows = log.rows[log.user_index == log.user_ids.index(f"user-{user:06d}")]
        assert rows["item_id"].tolist() == (life.items + 1).tolist()
        assert rows["event_time_ms"].tolist() == life.times_ms.tolist()


def test_controls() -> None:
    without = dataclasses.replace(SMALL, weights=CauseWeights().without("lifecycle"))
    assert not any((life.causes == LIFECYCLE).any() for life in lives_of(without))
    alone = dataclasses.replace(SMALL, weights=CauseWeights().without("session"))
    causes = np.concatenate([life.causes for life in lives_of(alone)])
    assert (causes == SESSION).mean() < 0.4  # the bursts that plant are sessions
    shuffled = dataclasses.replace(SMALL, shuffled_share=0.9, duplicate_rate=0.0, late_rate=0.0)
    events = next(parts(shuffled)).events
    ids, users = events["item_id"].to_numpy(), np.array(events["user_id"].to_pylist())
    for user, life in zip(np.unique(users), lives_of(SMALL), strict=False):
        items = ids[users == user].tolist()
        cut = int(0.9 * len(items))
        assert items[cut:] == (life.items[cut:] + 1).tolist()
        assert sorted(items[:cut]) == sorted((life.items[:cut] + 1).tolist())
        assert items[:cut] != (life.items[:cut] + 1).tolist()


def test_long_lives_hold_causes_beyond_the_services_segments() -> None:
    config = dataclasses.replace(product_segments(), min_length=100_000, num_users=1)
    life = lives_of(config)[0]
    assert len(life.items) == 100_000
    assert (np.diff(life.times_ms) > 0).all()
    assert (life.causes == LIFECYCLE).sum() > 20
    assert life.reaches[life.causes == LIFECYCLE].min() >= 5_256


@pytest.mark.parametrize(
    ("wrong", "phrase"),
    [
        ({"episode_reach": (4, 64)}, "must grow"),
        ({"min_length": 100}, "256 interactions at least"),
        ({"late_rate": 1.5}, "rates are from 0 to 1"),
        ({"life_days": 400.0}, "of 365 days"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(wrong: dict[str, object], phrase: str) -> None:
    with pytest.raises(ValueError, match=phrase):
        dataclasses.replace(SMALL, **wrong)  # type: ignore[arg-type]


@pytest.mark.broker
def test_produce_takes_it(kafka: RunningKafka, topics: TopicsConfig, tmp_path: Path) -> None:
    out = tmp_path / "stream"
    sizes = ["--users", "3", "--min-length", "256", "--max-length", "300", "--workers", "1"]
    made = [sys.executable, "-m", "bench.quality.synthetic", *sizes, "--out", str(out)]
    subprocess.run(made, check=True)
    config = tmp_path / "gemstream.toml"
    config.write_text(
        f'[topics]\ninteractions = "{topics.interactions}"\ndead_letters = "{topics.dead_letters}"\n'
        f'compression_jobs = "{topics.compression_jobs}"\nnum_partitions = {topics.num_partitions}\n'
    )
    arguments = ["--config", str(config), "--bootstrap", kafka.bootstrap, "--json"]
    produce = [sys.executable, "-m", "services.cli", "produce", str(out / "events.parquet")]
    done = subprocess.run([*produce, *arguments], check=True, capture_output=True, text=True)
    num_events = pyarrow.parquet.read_metadata(out / "events.parquet").num_rows
    told = json.loads(done.stdout)
    assert (told["produced"], told["users"]) == (num_events, 3)
