"""Items scored beside their codes: against loops over the formulas, in training, search and serving."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from rich.progress import Progress
from torch import Tensor
from torch.nn import functional

from model.beam_search import Beams, beam_search
from model.bundle import Bundle, load_bundle
from model.catalogue import Catalogue, CatalogueItem
from model.engine_choice import EngineChoice
from model.engine_config import EngineConfig
from model.errors import ModelConfigError
from model.explain import trace_decoder
from model.features import item_rows
from model.network import Network, NetworkConfig
from model.next_item import ItemRows, NextItemConfig, NextItems
from model.query import ItemFilter, Query
from model.recent import RecentEncoder
from model.recommender import Recommender
from model.repeat_features import repeat_candidates
from model.repeats import RepeatConfig, RepeatMixture
from model.training.batches import BatchBuilder
from model.training.data_parallel import _denominators
from model.training.evaluate import rank_at
from model.training.histories import build_histories
from model.training.losses import batch_losses, encode_batch
from model.training.next_item_loss import catalogue_cross_entropy
from model.training.train import train
from model.trie import Trie
from state.event_log import EventLog
from state.interaction import Rows
from state.item_statistics import statistics_of
from state.user_state import UserMeta, UserState
from tests.model.plain_context import plain_mixture
from tests.model.whole_context import whole_context
from tests.model.worlds import SCORING, SMALL, make_rows

NETWORK = SCORING.network
LAYER = NETWORK.layer


@pytest.fixture(scope="module")
def builder(event_log: EventLog, scoring: Bundle) -> BatchBuilder:
    return BatchBuilder(build_histories(event_log), scoring.catalogue, NETWORK, scoring.history, 9)


def plain_next(bundle: Bundle, state_H: Tensor, newest: Rows | None = None) -> np.ndarray:
    """P_next of every item by loops; without `newest` interactions nothing is gained by transitions."""
    network = bundle.network
    assert network.next_item is not None
    query_H = network.next_item.to_query(state_H).double().numpy()
    counts = bundle.catalogue.counts
    rows = ItemRows.of(bundle.catalogue, network.config.features).rows
    weights = []
    for index in range(len(counts)):
        vector_H = sum(network.features.vid.weight[row].double().numpy() for row in rows[index])
        weights.append(np.exp(query_H @ vector_H) * counts[index])
    if newest is not None:
        for item, gain in plain_gains(bundle, newest["item_id"]).items():
            weights[item] *= np.exp(network.next_item.transition_weight * gain)
    return np.array(weights) / np.sum(weights)


def plain_gains(bundle: Bundle, item_ids: np.ndarray) -> dict[int, float]:
    """By index in the catalogue, of the bundle's own catalogue."""
    table, reached = bundle.transitions, dict[int, float]()
    assert table is not None
    for back, item_id in enumerate(item_ids[::-1][:16].tolist()):
        for place in np.flatnonzero(table.item_ids == item_id).tolist():
            for pair in range(table.starts[place], table.starts[place + 1]):
                index = int(table.followers[pair])
                reached[index] = reached.get(index, 0.0) + 0.6**back * float(table.shares[pair])
    had = bundle.catalogue.find(item_ids[-16:]).tolist()
    return {
        index: float(np.log(1 + sum_ / 0.003))
        for index, sum_ in reached.items()
        if index not in had
    }


def recent_of(state: UserState) -> Rows:
    return state.rows[-SCORING.history.recent_len :]


def state_of(rows: Rows) -> UserState:
    return UserState("someone", UserMeta(length=len(rows)), rows, None)


def numbered(sids: np.ndarray, counts: np.ndarray) -> Catalogue:
    """A catalogue of items 1, 2, ..."""
    num, zeros = len(counts), np.zeros(len(counts))
    columns = {"item_ids": np.arange(1, num + 1), "author_ids": zeros, "tags": zeros,
               "durations_ms": zeros, "counts": counts, "sids": sids}  # fmt: skip
    return Catalogue(columns, [""] * num)


def of_sids(beams: Beams, trie: Trie) -> dict[int, float]:
    """Probabilities by SID number; what is left over of the beams comes last."""
    numbers, log_probs = (one[0, : trie.num_sids] for one in (beams.sids, beams.log_probs))
    return dict(zip(numbers.tolist(), log_probs.exp().tolist(), strict=True))


def no_repeats(next_items: NextItems) -> RepeatMixture:
    """A mixture without any candidate."""
    nothing, certain = torch.zeros(1, 0, dtype=torch.int64), torch.zeros(1)
    return RepeatMixture(
        certain,
        certain - torch.inf,
        nothing,
        nothing,
        torch.zeros(1, 0),
        torch.zeros(1, 0, dtype=torch.bool),
        next_items,
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 25), st.floats(0.0, 0.95))
def test_sids_get_the_mixture_of_codes_and_items(seed: int, num_items: int, weight: float) -> None:
    random = np.random.default_rng(seed)
    sids = random.integers(0, 3, (num_items, 3))
    catalogue = numbered(sids, random.integers(1, 9, num_items))
    trie = Trie(catalogue.sids_SD, catalogue.sid_counts_S)
    logits = torch.from_numpy(random.normal(size=(3, 3))).float()

    def score_next(codes: Tensor, _: Tensor) -> Tensor:
        return logits[codes.shape[-1]].expand(*codes.shape[:2], -1)

    log_probs = torch.from_numpy(random.normal(size=(1, num_items))).float().log_softmax(-1)
    starts = torch.from_numpy(catalogue.bucket_starts)
    items = NextItems.of(log_probs, torch.tensor([weight]), starts)
    beams = beam_search(score_next, trie, 1, 64, no_repeats(items))
    alone = beam_search(score_next, trie, 1, 64)
    by_codes, found = of_sids(alone, trie), of_sids(beams, trie)
    total = 0.0
    for sid, probability in found.items():
        by_item = sum(float(log_probs[0, i].exp()) for i in catalogue.bucket(sid))
        expected = (1 - weight) * by_codes[sid] + weight * by_item
        assert probability == pytest.approx(expected, rel=1e-4, abs=1e-7)
        total += probability
    assert total == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("num_rows", [1, 5, 19])
def test_serving_scores_what_the_formulas_say(scoring: Bundle, num_rows: int) -> None:
    """The whole catalogue, every item: codes, items and repeats."""
    state = state_of(make_rows(num_rows))
    recommender = Recommender(scoring)
    answer = recommender.recommend(state, Query(k=100, beam_width=100, repeats=False))
    without = Recommender(replace(scoring, network=without_items(scoring)))
    by_codes = {
        one.item.item_id: np.exp(one.score)
        for one in without.recommend(state, Query(k=100, beam_width=100, repeats=False))
    }
    by_item = plain_next(
        scoring, whole_context(scoring, state).recent.vectors[0, -1], recent_of(state)
    )
    assert scoring.network.next_item is not None
    weight = scoring.network.next_item.weight
    assert len(answer) == len(scoring.catalogue)
    for one in answer:
        index = int(scoring.catalogue.find(np.array([one.item.item_id], np.uint64))[0])
        expected = (1 - weight) * by_codes[one.item.item_id] + weight * by_item[index]
        assert np.exp(one.score) == pytest.approx(expected, rel=2e-3, abs=1e-6)
    assert sum(np.exp(one.score) for one in answer) == pytest.approx(1, abs=1e-3)


def test_a_low_precision_engine_scores_items(scoring: Bundle) -> None:
    """Contexts are bf16 then, item vectors are not."""
    choice = EngineChoice(EngineConfig(name="torch", precision="bf16"), 100, 1, 1)
    exact, rounded = Recommender(scoring), Recommender(scoring, engine=choice)
    state, query = state_of(make_rows(9)), Query(k=100, beam_width=100)
    scores, found = (
        {one.item.item_id: one.score for one in recommender.recommend(state, query)}
        for recommender in (exact, rounded)
    )
    assert found == pytest.approx(scores, abs=0.1)


def without_items(bundle: Bundle) -> Network:
    """The same network, which asks its codes alone."""
    network = load_bundle(bundle.path).network
    network.next_item = None
    return network


def test_served_is_as_evaluated(scoring: Bundle, builder: BatchBuilder) -> None:
    cut = int(builder.histories.held_out_cuts[3])
    rows = builder.histories.rows[builder.histories.user_start[cut] : cut][-12:]
    whole = BatchBuilder(builder.histories, scoring.catalogue, NETWORK, scoring.history, 100)
    (ranked,) = rank_at(scoring.network, scoring.trie, whole, np.array([cut]), 100)
    assert len(ranked) == len(scoring.catalogue)
    batch = whole.build(np.array([cut]), 1, 1, None)
    context, _ = encode_batch(scoring.network, batch)
    state = state_of(rows[-scoring.history.recent_len :])
    served = whole_context(scoring, state).recent.vectors[0, -1]
    torch.testing.assert_close(context.recent.vectors[0, -1], served)


def test_items_that_training_did_not_see_are_found_by_their_codes(scoring: Bundle) -> None:
    sid = np.array([scoring.catalogue.sid_of_item(0)])
    catalogue = scoring.catalogue.with_items([CatalogueItem(999)], sid)
    trie = Trie(catalogue.sids_SD, catalogue.sid_counts_S)
    recommender = Recommender(scoring)
    recommender.swap(replace(recommender.view, catalogue=catalogue, trie=trie))
    query = Query(k=100, beam_width=100, filter=ItemFilter(exclude=frozenset({3})))
    answer = {o.item.item_id: o.score for o in recommender.recommend(state_of(make_rows(4)), query)}
    assert len(answer) == len(catalogue) - 1
    assert -30 < answer[999] < max(answer.values())


def test_where_training_saw_no_item_codes_decide(scoring: Bundle, builder: BatchBuilder) -> None:
    """A catalogue of new items alone: softmax over shares that are all nothing would be uniform."""
    catalogue = numbered(scoring.catalogue.sids_SD[:9], np.zeros(9, np.int64))
    trie = Trie(catalogue.sids_SD, catalogue.sid_counts_S)
    state, query = state_of(make_rows(9)), Query(k=9, beam_width=100)
    answers = []
    for bundle in (scoring, replace(scoring, network=without_items(scoring))):
        recommender = Recommender(bundle)
        recommender.swap(replace(recommender.view, catalogue=catalogue, trie=trie))
        answers.append(recommender.recommend(state, query))
    assert [one.item for one in answers[0]] == [one.item for one in answers[1]]
    scores = [[one.score for one in answer] for answer in answers]
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-5)
    context, _ = encode_batch(scoring.network, builder.build(np.array([9]), 1, 1, None))
    rows, starts = ItemRows.of(catalogue, NETWORK.features), torch.zeros(10, dtype=torch.int64)
    offline = scoring.network.next_items(context.recent, rows, starts)
    assert offline is not None
    assert offline.weight.tolist() == [0]


def test_what_items_say_is_explained_by_the_recent_stream(scoring: Bundle) -> None:
    """By definition: (1 - g) a P_next / P; the decoder's streams and repeats share the rest."""
    state, query = state_of(make_rows(19)), Query(k=100, beam_width=100)
    recommender = Recommender(scoring)
    context, found = recommender.encode_state(state), recommender.recommend(state, query)
    explained = recommender.explain(context, query, found)
    codes_1TP = torch.tensor([one.sid for one in found])[None, :, :-1]
    whole = whole_context(scoring, state)
    streams = trace_decoder(scoring.network, whole, codes_1TP).shares.tolist()
    by_item = plain_next(scoring, whole.recent.vectors[0, -1], recent_of(state))
    generator = float(plain_mixture(scoring, state).log_generator.exp())
    for one, why, (recent, mid_term, _) in zip(found, explained, streams, strict=True):
        index = int(scoring.catalogue.find(np.array([one.item.item_id], np.uint64))[0])
        said = generator * NETWORK.next_item.weight * by_item[index] / np.exp(one.score)
        rest = 1 - said - why.repeats
        assert rest > 0
        assert why.recent == pytest.approx(said + rest * recent, abs=1e-3)
        assert why.mid_term == pytest.approx(rest * mid_term, abs=1e-3)
        assert why.recent + why.mid_term + why.repeats == pytest.approx(1, abs=1e-5)


def test_mixtures_are_joined_before_items_are_scored() -> None:
    items = NextItems.of(torch.zeros(1, 1), torch.tensor([0.5]), torch.tensor([0, 1]))
    mixture = no_repeats(items)
    with pytest.raises(ValueError, match="join first"):
        RepeatMixture.join([mixture, mixture])
    bare = replace(mixture, next_items=None)
    assert RepeatMixture.join([bare, bare]).log_generator.shape == (2,)


def test_repeats_know_items_by_all_of_their_rows(scoring: Bundle) -> None:
    network, ids = scoring.network, scoring.catalogue.item_ids
    statistics = [statistics_of(make_rows(9))]
    candidates = repeat_candidates(statistics, scoring.catalogue, NETWORK.features, 99, 9)
    bos_BH, table = torch.randn(1, LAYER.width), network.features.vid.weight
    rows = item_rows(ids[candidates.items[0]], NETWORK.features).tolist()
    vectors_NH = torch.stack([table[first] + table[second] for first, second in rows])
    expected = network.repeats(candidates, vectors_NH[None], bos_BH)
    found = network.repeat_evidence(candidates, bos_BH)
    torch.testing.assert_close(found.scores, expected.scores)


def test_one_pass_learns_what_followed_each_interaction(
    scoring: Bundle, builder: BatchBuilder
) -> None:
    """The newest three of a context; in evaluation the newest alone."""
    cuts = builder.histories.train_cuts[[2, 9]]
    batch = builder.build(cuts, 1, 1, np.random.default_rng(0))
    loss = batch_losses(scoring.network, scoring.trie, batch, "dense").next_item
    context, _ = encode_batch(scoring.network, batch)
    ids, expected = builder.histories.rows["item_id"], []
    for row, cut in enumerate(cuts.tolist()):
        length = cut - int(builder.histories.user_start[cut])
        for back in range(min(3, length)):
            by_item = plain_next(scoring, context.recent.vectors[row, -1 - back])
            followed = int(scoring.catalogue.find(ids[cut - back : cut - back + 1])[0])
            if followed >= 0:
                expected.append(-np.log(by_item[followed]))
    assert len(expected) > 2
    assert float(loss) == pytest.approx(np.mean(expected), rel=1e-4)
    evaluated = builder.build(cuts, 1, 1, None).next_items
    assert (evaluated[:, :-1] == -1).all()
    assert torch.equal(evaluated[:, -1], batch.next_items[:, -1])


def test_a_causal_stream_sees_nothing_later() -> None:
    """With one layer, each state is that of the items up to it; padding changes nothing."""
    encoder = RecentEncoder(LAYER, 1, max_len=8, causal=True).double()
    assert encoder.positions_RH is not None
    items = torch.randn(1, 6, LAYER.width, dtype=torch.float64)
    whole = encoder(items, torch.ones(1, 6, dtype=torch.bool)).vectors[0]
    padded = torch.cat([torch.full((1, 2, LAYER.width), 9.0).double(), items], 1)
    mask = torch.arange(8)[None] >= 2
    torch.testing.assert_close(encoder(padded, mask).vectors[0, 2:], whole)
    located = items + encoder.positions_RH[:6].flip(0)
    for i in range(6):
        prefix = located[:, : i + 1]
        alone = encoder.norm(encoder.layers[0](prefix, None))[0, -1]
        torch.testing.assert_close(alone, whole[i])


def test_tastes_are_learnt_by_items_alone(event_log: EventLog, tmp_path: Path) -> None:
    """As by codes: popularity finds a third."""
    next_item = replace(NETWORK.next_item, weight=0.99)
    network = replace(NETWORK, next_item=next_item, repeats=RepeatConfig(enabled=False))
    config = replace(SCORING, max_steps=60, table_rate=1.0, network=network)
    report = train(event_log, None, config, tmp_path / "longer", Progress(disable=True))
    assert report["recall_at_20"]["network"] > 0.8


def test_without_repeats_nothing_is_a_candidate(event_log: EventLog, tmp_path: Path) -> None:
    network = replace(NETWORK, repeats=RepeatConfig(enabled=False))
    config = replace(SCORING, network=network, max_steps=3)
    report = train(event_log, None, config, tmp_path / "none", Progress(disable=True))
    assert [stage["name"] for stage in report["stages"]] == ["dense", "indexer", "selection"]
    bundle = load_bundle(tmp_path / "none")
    rows = make_rows(9)
    with_repeats, without = (
        Recommender(bundle).recommend(state_of(rows), Query(k=60, beam_width=60, repeats=repeats))
        for repeats in (True, False)
    )
    assert with_repeats == without
    builder = BatchBuilder(build_histories(event_log), bundle.catalogue, network, SMALL.history, 9)
    assert builder.build(builder.histories.train_cuts[:3], 1, 1, None).repeats.items.shape == (3, 0)


def test_settings_outside_their_limits_are_refused() -> None:
    with pytest.raises(ModelConfigError, match="dropout"):
        NextItemConfig(dropout=1.0)
    with pytest.raises(ModelConfigError, match="weight"):
        NextItemConfig(weight=1.0)
    with pytest.raises(ModelConfigError, match="positions"):
        NextItemConfig(positions=0)
    with pytest.raises(ModelConfigError, match="newest_cuts"):
        replace(SMALL, newest_cuts=1.5)
    assert not NetworkConfig().next_item.enabled


@pytest.mark.parametrize("num_rows", [1, 128, 300])
def test_the_loss_in_blocks_is_cross_entropy(num_rows: int) -> None:
    """Loss and gradients, against autograd over the whole matrix of logits."""
    generator = torch.Generator().manual_seed(num_rows)
    query, vectors, shares = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((num_rows, 6), (40, 6), (40,))
    )
    targets = torch.randint(0, 40, (num_rows,), generator=generator)
    plain = functional.cross_entropy(query @ vectors.T + shares.detach(), targets)
    expected = torch.autograd.grad(3 * plain, (query, vectors))
    loss = catalogue_cross_entropy(query, vectors, shares.detach(), targets)
    found = torch.autograd.grad(3 * loss, (query, vectors))
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(found, expected)
    with torch.autocast("cpu", torch.bfloat16):
        rough = catalogue_cross_entropy(query.float(), vectors.float(), shares.float(), targets)
    torch.testing.assert_close(rough.double(), plain, atol=0.05, rtol=0.02)


def test_what_was_had_can_be_left_out_of_a_ranking(scoring: Bundle, builder: BatchBuilder) -> None:
    cuts = builder.histories.held_out_cuts[:3]
    everything = rank_at(scoring.network, scoring.trie, builder, cuts, 100)
    fresh = rank_at(scoring.network, scoring.trie, builder, cuts, 100, only_new=True)
    for cut, ranked, new in zip(cuts.tolist(), everything, fresh, strict=True):
        had = builder.histories.rows["item_id"][builder.histories.user_start[cut] : cut]
        kept = ranked[~np.isin(scoring.catalogue.item_ids[ranked], had)]
        assert new.tolist() == kept.tolist()
        assert builder.seen(cut).sum() + len(new) == len(scoring.catalogue)


def test_where_no_item_is_scored_a_batch_carries_no_catalogue(
    scoring: Bundle, builder: BatchBuilder, bundle: Bundle
) -> None:
    cuts = builder.histories.train_cuts[:3]
    rows = builder.build(cuts, 1, 1, None).catalogue_rows
    assert rows is not None
    assert len(rows.rows) == len(scoring.catalogue)
    off = BatchBuilder(builder.histories, bundle.catalogue, SMALL.network, bundle.history, 9)
    assert off.build(cuts, 1, 1, None).catalogue_rows is None


def test_parts_of_a_batch_add_up(scoring: Bundle, builder: BatchBuilder) -> None:
    """Two processes: each loss counts by the interactions that its part learns from."""
    cuts, halves = builder.histories.train_cuts[1:8], (slice(0, None, 2), slice(1, None, 2))
    whole, *parts = (
        builder.build(cuts, 2, 2, np.random.default_rng(0), shard)
        for shard in (slice(None), *halves)
    )
    losses = [
        float(batch_losses(scoring.network, scoring.trie, batch, "dense").next_item)
        for batch in (whole, *parts)
    ]
    counts = [_denominators(batch, 4)["next_item"] for batch in (whole, *parts)]
    assert counts[0] == counts[1] + counts[2] > counts[1] > 0
    together = (losses[1] * counts[1] + losses[2] * counts[2]) / counts[0]
    assert losses[0] == pytest.approx(together, rel=1e-4)
