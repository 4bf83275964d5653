"""What the network corrects: how popular items are at the moment, in training, in evaluation and in serving."""

from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from rich.progress import Progress

from model.beam_search import beam_search
from model.bundle import Bundle, load_bundle
from model.live_catalogue import LiveCatalogue
from model.popularity import Popularity
from model.prior import Prior
from model.query import Query
from model.recommender import Recommender
from model.training.batches import BatchBuilder
from model.training.evaluate import rank_at
from model.training.histories import Histories, build_histories
from model.training.losses import next_token_loss
from model.training.prior_log import PriorLog
from model.training.train import train
from model.trie import Trie
from state.event_log import EventLog
from state.interaction import DISLIKE_MASK
from tests.model.test_item_scorer import STATE, taken
from tests.model.test_recommender import state_of
from tests.model.worlds import HOUR_MS, SMALL

HALF_LIFE_S = 86_400.0
LIVE = replace(
    SMALL,
    network=replace(
        SMALL.network,
        live_prior=True,
        repeats=replace(SMALL.network.repeats, popularity_half_life_s=HALF_LIFE_S),
    ),
)


@pytest.fixture(scope="module")
def live_path(event_log: EventLog, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("live") / "bundle"
    train(event_log, None, LIVE, path, Progress(disable=True))
    return path


@pytest.fixture
def live(live_path: Path) -> Bundle:
    return load_bundle(live_path)


HALF_LIFE_MS = round(HALF_LIFE_S * 1_000)


class PlainCounts:
    """Row by row: what all users took, once per user, item and half-life."""

    def __init__(self, histories: Histories, bundle: Bundle) -> None:
        found = bundle.catalogue.find(histories.rows["item_id"]).tolist()
        self.counted: dict[tuple[int, int, int], int] = {}
        self.num_items = len(bundle.catalogue)
        for user, place, row in zip(histories.users.tolist(), found, histories.rows, strict=True):
            event_ms = int(row["event_time_ms"])
            if place >= 0 and not row["kinds"] & DISLIKE_MASK:
                self.counted.setdefault((user, place, event_ms // HALF_LIFE_MS), event_ms)

    def before(self, moment_ms: int) -> np.ndarray:
        """[N]: decayed to the moment."""
        counts = np.zeros(self.num_items)
        for (_, place, _), event_ms in self.counted.items():
            if event_ms < moment_ms:
                counts[place] += 2 ** (-(moment_ms - event_ms) / HALF_LIFE_MS)
        return counts


def plain_prior(bundle: Bundle, counted: np.ndarray) -> np.ndarray:
    """Item by item: those of three users and more as counted, the rest as in training."""
    trained = [max(int(count), 1) for count in bundle.catalogue.counts]
    known = [count if count >= 3 else 0.0 for count in counted]
    spread = max(sum(counted) - sum(known), 0.05 * sum(counted)) or 1.0
    shares = [one / sum(trained) for one in trained]
    return np.array([count + spread * share for count, share in zip(known, shares, strict=True)])


def log_of(bundle: Bundle, histories: Histories) -> PriorLog:
    return PriorLog(histories, bundle.catalogue, bundle.trie, HALF_LIFE_S)


def test_moments_are_what_a_loop_over_the_log_gives(live: Bundle, event_log: EventLog) -> None:
    histories = build_histories(event_log)
    log, catalogue, plain_counts = (
        log_of(live, histories),
        live.catalogue,
        PlainCounts(histories, live),
    )
    random = np.random.default_rng(0)
    for cut in random.choice(histories.train_cuts, 8, replace=False).tolist():
        time_ms = int(histories.rows["event_time_ms"][cut])
        moment_ms = log.moment_before(time_ms)
        assert moment_ms <= time_ms
        counts = plain_prior(live, plain_counts.before(moment_ms))
        totals = np.array(
            [counts[list(catalogue.bucket(s))].sum() for s in range(log.trie.num_sids)]
        )
        plain = Trie(catalogue.sids_SD, np.ones(len(totals), np.int64)).weighed(totals[None])
        moments = log.moments_of(np.array([time_ms]))
        for level in range(plain.num_levels):
            nodes = torch.arange(plain.num_nodes(level - 1) if level else 1)[None]
            torch.testing.assert_close(
                log.trie.at(moments).children(level, nodes).log_share,
                plain.children(level, nodes).log_share,
            )
        inside = np.log(counts / totals[catalogue.bucket_of_item])
        np.testing.assert_allclose(log.log_shares_at(cut), inside, rtol=1e-5, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), num_moments=st.integers(1, 5))
def test_requests_at_several_moments_are_searched_as_each_alone(
    seed: int, num_moments: int
) -> None:
    random = np.random.default_rng(seed)
    sids = np.unique(random.integers(0, 4, (20, 3)), axis=0)
    counts = random.integers(1, 50, (num_moments, len(sids))).astype(np.float64)
    trie = Trie(sids, np.ones(len(sids), np.int64)).weighed(counts)
    moments = torch.from_numpy(random.integers(0, num_moments, 4))
    logits = torch.from_numpy(random.standard_normal((3, 4))).float()
    together = beam_search(_same(logits), trie.at(moments), 4, 5)
    for row, moment in enumerate(moments.tolist()):
        one = Trie(sids, counts[moment].astype(np.int64))
        alone = beam_search(_same(logits), one, 1, 5)
        torch.testing.assert_close(together.log_probs[row], alone.log_probs[0])


def _same(logits_DK: torch.Tensor):  # type: ignore[no-untyped-def]
    return lambda codes, _: logits_DK[codes.shape[-1]].expand(*codes.shape[:2], -1)


def test_ranked_as_served_told_and_untold(live_path: Path, event_log: EventLog) -> None:
    bundle, histories = load_bundle(live_path), build_histories(event_log)
    builder = BatchBuilder(
        histories, bundle.catalogue, bundle.network.config, bundle.history, 1_000
    )
    lengths = histories.train_cuts - histories.user_start[histories.train_cuts]
    cuts = histories.train_cuts[(lengths > 8) & (lengths <= 16)][:6]
    at_end = list(rank_at(bundle.network, bundle.trie, builder, cuts, 1_000))
    log = builder.follow_prior(bundle.trie)
    now = list(rank_at(bundle.network, bundle.trie, builder, cuts, 1_000))
    recommender, ids = Recommender(bundle), bundle.catalogue.item_ids
    plain_counts = PlainCounts(histories, bundle)
    for cut, ended, told in zip(cuts.tolist(), at_end, now, strict=True):
        time_ms = int(histories.rows["event_time_ms"][cut])
        state = state_of(histories.rows[histories.user_start[cut] : cut])
        query = Query(k=len(ids), beam_width=1_000, time_ms=time_ms)
        counts = plain_counts.before(log.moment_before(time_ms))
        with mock.patch.object(Popularity, "of_rows", return_value=None):  # of repeats: untold
            recommender.set_popularity(ids, counts)
            found = recommender.recommend(state, query)
        assert [one.item.item_id for one in found] == ids[told].tolist()
        recommender.set_popularity(ids[:0], counts[:0])
        found = recommender.recommend(state, query)
        assert [one.item.item_id for one in found] == ids[ended].tolist()
    assert any(a.tolist() != b.tolist() for a, b in zip(at_end, now, strict=True))


def test_what_is_told_matters_to_what_is_learned(live: Bundle, event_log: EventLog) -> None:
    histories = build_histories(event_log)
    builder = BatchBuilder(histories, live.catalogue, live.network.config, live.history, 1_000)
    trie = builder.follow_prior(live.trie).trie
    batch = builder.build(histories.train_cuts[-40::5], 4, 4, np.random.default_rng(0))
    context = mock.Mock()
    with torch.no_grad(), mock.patch.object(live.network, "decode", _silent(live)):
        loss, _ = next_token_loss(live.network, trie, context, batch, "dense")
        first = replace(batch, moments=None)
        other, _ = next_token_loss(live.network, trie, context, first, "dense")
    assert float(loss) != float(other)


def _silent(bundle: Bundle):  # type: ignore[no-untyped-def]
    width = bundle.network.config.layer.width
    return lambda _, codes, **__: torch.zeros(*codes.shape[:2], codes.shape[2] + 1, width)


def test_an_item_that_everybody_takes_rises(live: Bundle) -> None:
    recommender = Recommender(live)
    everything = Query(k=len(live.catalogue), beam_width=1_000)
    before = [one.item.item_id for one in recommender.recommend(STATE, everything)]
    item = before[-1]
    recommender.set_popularity(np.array([item], np.uint64), np.array([1e6]))
    after = [one.item.item_id for one in recommender.recommend(STATE, everything)]
    assert after.index(item) < len(after) // 2
    assert sorted(after) == sorted(before), "nothing is impossible"


def test_a_new_item_is_expected_as_soon_as_it_is_taken(live: Bundle) -> None:
    """Told before the catalogue changes, while it is prepared, and after."""
    recommender = Recommender(live)
    catalogue = LiveCatalogue(live, prepare=recommender.prepare)
    recommender.swap(catalogue.view)
    told = np.array([999, int(live.catalogue.item_ids[0])], np.uint64), np.array([50.0, 10.0])
    recommender.set_popularity(*told)
    built = catalogue.build(taken(catalogue, 999))
    catalogue.publish(built)
    recommender.swap(catalogue.view)
    everything = Query(k=len(live.catalogue) + 1, beam_width=1_000)
    scores = {one.item.item_id: one.score for one in recommender.recommend(STATE, everything)}
    fresh = Recommender(live)
    fresh.swap(catalogue.view)
    untold = {one.item.item_id: one.score for one in fresh.recommend(STATE, everything)}
    assert scores[999] > untold[999] + 1
    fresh.set_popularity(*told)
    again = {one.item.item_id: one.score for one in fresh.recommend(STATE, everything)}
    assert again == pytest.approx(scores)


def test_a_view_swapped_to_while_popularity_is_told_stays(live: Bundle) -> None:
    recommender = Recommender(live)
    catalogue = LiveCatalogue(live, prepare=recommender.prepare)
    catalogue.publish(catalogue.build(taken(catalogue, 999)))
    made = Prior.of

    def swap_meanwhile(*given: object) -> Prior:
        prior = made(*given)  # type: ignore[arg-type]
        recommender.swap(catalogue.view)
        return prior

    with mock.patch.object(Prior, "of", swap_meanwhile):
        recommender.set_popularity(live.catalogue.item_ids[:1], np.array([5.0]))
    assert recommender.view is catalogue.view
    found = recommender.recommend(STATE, Query(k=len(live.catalogue) + 1, beam_width=1_000))
    assert 999 in {one.item.item_id for one in found}


def test_without_the_flag_nothing_changes(bundle: Bundle) -> None:
    recommender = Recommender(bundle)
    everything = Query(k=len(bundle.catalogue), beam_width=1_000, repeats=False)
    trie = recommender._catalogue.now.prior.trie
    recommender.set_popularity(bundle.catalogue.item_ids[:1], np.array([1e6]))
    assert recommender._catalogue.now.prior.trie is trie is bundle.trie
    assert recommender.recommend(STATE, everything)


def test_an_empty_log_expects_what_training_counted(live: Bundle, event_log: EventLog) -> None:
    histories = build_histories(event_log)
    histories.rows["kinds"] |= DISLIKE_MASK
    log = log_of(live, histories)
    plain = Trie(live.catalogue.sids_SD, live.catalogue.sid_counts_S)
    nodes = torch.zeros(1, 1, dtype=torch.int64)
    at = log.moments_of(np.array([0]))
    torch.testing.assert_close(
        log.trie.at(at).children(0, nodes).log_share, plain.children(0, nodes).log_share
    )


@pytest.mark.parametrize("years", [2, 40])
def test_years_without_an_event_are_no_zero(live: Bundle, event_log: EventLog, years: int) -> None:
    """What has faded beyond the smallest number is told apart as training counted."""
    histories = build_histories(event_log)
    last = int(histories.rows["event_time_ms"].argmax())
    histories.rows["event_time_ms"][last] += years * 365 * 24 * HOUR_MS
    log = log_of(live, histories)
    assert np.isfinite(log.log_shares_at(last)).all()
    moments = log.moments_of(histories.rows["event_time_ms"][[last]])
    nodes = torch.zeros(1, 1, dtype=torch.int64)
    shares = log.trie.at(moments).children(0, nodes).log_share
    plain = Trie(live.catalogue.sids_SD, live.catalogue.sid_counts_S).children(0, nodes)
    torch.testing.assert_close(shares, plain.log_share)
