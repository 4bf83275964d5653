"""Repeats: decayed counts to begin with, sums that must agree, and a gate that finds out what repeats are worth."""

from dataclasses import replace
from math import log, log1p
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.progress import Progress

from model.bundle import Bundle, load_bundle
from model.features import hash_buckets
from model.kind_features import kind_features
from model.layers import LayerConfig
from model.query import ItemFilter, Query
from model.recommender import Recommender
from model.repeat_features import (
    NEW,
    NUM_FEATURES,
    SINCE_LAST,
    STRENGTH,
    RepeatCandidates,
    repeat_candidates,
)
from model.repeats import RepeatConfig, RepeatEvidence, RepeatMixture, Repeats
from model.training.batches import BatchBuilder
from model.training.evaluate import rank_at
from model.training.histories import build_histories
from model.training.losses import encode_batch, repeat_loss
from model.training.popularity_log import PopularityLog
from model.training.repeat_items import describe_items
from model.training.train import train
from state.event_log import EventLog
from state.interaction import DISLIKE_MASK, INTERACTION, Rows
from state.item_statistics import DAY_MS, HALF_LIVES_DAYS, empty_statistics, statistics_of
from tests.model.plain_context import plain_answer
from tests.model.test_recommender import state_of
from tests.model.worlds import HOUR_MS, SMALL, START_MS, make_rows

LAYER = LayerConfig(width=8, num_heads=2)
FEATURES = SMALL.network.features


def untrained(items: list[int], counts: list[float]) -> RepeatMixture:
    """Items are their own SIDs."""
    numbers = torch.tensor([items], dtype=torch.int64)
    features = torch.zeros(1, len(items), NUM_FEATURES)
    features[0, :, STRENGTH] = torch.tensor(counts).log()
    candidates = RepeatCandidates(numbers, numbers, numbers.clamp(min=0)[..., None], features)
    module = Repeats(LAYER, RepeatConfig(), 11)
    evidence: RepeatEvidence = module(candidates, torch.randn(1, len(items), 8), torch.randn(1, 8))
    return evidence.mixture()


def test_an_untrained_module_smooths_decayed_counts() -> None:
    """(count + e^-b P_generator) / (sum of counts + e^-b); padding left out."""
    mixture = untrained([3, 5, -1], [2.5, 0.5, 7.0])
    generator = torch.tensor([[0.2, 0.1, 0.05]])
    smoothing = np.exp(4.6)
    expected = (np.array([2.5, 0.5, 0]) + smoothing * generator[0].numpy()) / (3 + smoothing)
    mixed = mixture.mix(generator.log(), mixture.share_of(torch.tensor([[3, 5, 7]]))).exp()
    np.testing.assert_allclose(mixed[0].detach(), expected, rtol=1e-4)


@pytest.mark.parametrize("items", [[-1, -1], []], ids=["padding", "nothing"])
def test_without_candidates_the_generator_decides(items: list[int]) -> None:
    mixture = untrained(items, [1.0] * len(items))
    assert float(mixture.log_generator.detach()) == pytest.approx(0)
    generator = torch.tensor([[-3.0]])
    mixed = mixture.mix(generator, mixture.share_of(torch.tensor([[0]])))
    torch.testing.assert_close(mixed, generator)


def test_shares_of_trie_nodes_add_up_the_shares_of_their_sids(bundle: Bundle) -> None:
    trie = bundle.trie
    sids = torch.tensor([[0, 3, 3, -1, trie.num_sids - 1]])
    mixture = RepeatMixture(
        torch.zeros(1),
        torch.zeros(1),
        sids,
        sids,
        torch.tensor([[0.1, 0.2, 0.3, 0.0, 0.4]]),
        torch.zeros(1, 5, dtype=torch.bool),
    )
    every_sid = torch.arange(trie.num_sids)[None]
    share_of_sids = mixture.share_of(every_sid)[0]
    for level in range(trie.num_levels):
        nodes = mixture.share_of_nodes(trie.nodes_of(sids, level), trie.num_nodes(level))[0]
        expected = torch.zeros(trie.num_nodes(level))
        for sid, share in enumerate(share_of_sids):
            expected[trie.paths_SD[sid, level]] += share
        torch.testing.assert_close(nodes, expected)


def test_features_equal_the_slow_twin(bundle: Bundle) -> None:
    rows = make_rows(6)
    rows["item_id"], rows["kinds"] = [1, 2, 1, 10_000, 1, 2], 2
    days = [0, 0, 3, 4, 7, 9]
    rows["event_time_ms"] = START_MS + np.array(days) * DAY_MS
    found = repeat_candidates([statistics_of(rows)], bundle.catalogue, FEATURES, 99)
    ids = bundle.catalogue.item_ids[found.items[0]].tolist()
    assert ids == [1, 2]
    for item, features in zip(ids, found.features[0], strict=True):
        own = [d for d, i in zip(days, rows["item_id"].tolist(), strict=True) if i == item]
        counts = [sum(0.5 ** ((9 - d) / h) for d in own) for h in HALF_LIVES_DAYS]
        all_counts = [sum(0.5 ** ((9 - d) / h) for d in days) for h in HALF_LIVES_DAYS]
        interval = (own[-1] - own[0]) / (len(own) - 1)
        expected = [
            *(log(c + 1e-3) for c in counts),
            *(log((c + 1e-3) / (1 + a)) for c, a in zip(counts, all_counts, strict=True)),
            *(log(len(own)), log(len(own)), log(len(own) / 5), log(5), log(6)),
            *(log1p(9 - own[-1]), log1p({7: 1, 9: 0}[own[-1]])),
            *(log1p(interval), 1.0, log1p(9 - own[-1]) - log1p(interval)),
            *(log1p(9 - own[0]), log1p(9 / 5), log(6 / 5), 0.0),
        ]
        np.testing.assert_allclose(features[: len(expected)], expected, rtol=1e-5, atol=1e-6)
        assert features[SINCE_LAST] == pytest.approx(log1p(9 - own[-1]))


def test_kinds_equal_the_slow_twin() -> None:
    rows = make_rows(9)
    rows["item_id"], rows["kinds"] = [1, 2, 3, 1, 4, 5, 6, 2, 6], 2
    days = [0, 0, 3, 4, 4, 7, 8, 9, 9]
    rows["event_time_ms"] = START_MS + np.array(days) * DAY_MS
    statistics = statistics_of(rows)
    kinds = np.array([7, 7, 7, 8, 8, 0], np.uint32)  # of items 1 to 6
    items = statistics.items.copy()
    lacked = kinds == 8  # 4 and 5 as if they had never come
    items["decayed"][lacked], items["last_visit"][lacked] = 0, 0
    items["last_time_ms"][lacked] = START_MS
    found = kind_features(statistics.history, items, kinds)
    visit = {day: number for number, day in enumerate(sorted(set(days)), 1)}
    for place, item in enumerate(items["item_id"].tolist()):
        same = [1, 2, 3] if kinds[place] == 7 else []
        own = {i: [d for d, j in zip(days, rows["item_id"], strict=True) if j == i] for i in same}
        counts = [
            sum(0.5 ** ((9 - d) / h) for taken in own.values() for d in taken)
            for h in HALF_LIVES_DAYS
        ]
        last = max((taken[-1] for taken in own.values()), default=0)
        mine = sum(0.5 ** ((9 - d) / HALF_LIVES_DAYS[-1]) for d in own.get(item, []))
        if item == 6:
            mine = 0  # its kind is not known
        later = sum(taken[-1] > own[item][-1] for taken in own.values()) if item in own else 0
        expected = [
            *(log(c + 0.01) for c in counts),
            *(log1p(9 - last), log1p(len(visit) - (visit[last] if same else 0))),
            *(log1p(len(own)), log1p(later), log((mine + 0.01) / (counts[-1] + 0.02))),
        ]
        np.testing.assert_allclose(found[place], expected, rtol=1e-5, atol=1e-6)


def test_popular_items_that_the_history_lacks_are_candidates(bundle: Bundle) -> None:
    catalogue = bundle.catalogue
    popular = catalogue.item_ids[catalogue.by_popularity()[:5]]
    rows = make_rows(4)
    rows["kinds"] = 2
    rows["item_id"] = [popular[1], 10_000, popular[3], popular[3]]
    rows["event_time_ms"] = START_MS + np.array([0, 3, 4, 5]) * DAY_MS
    rows["kinds"][3] |= DISLIKE_MASK
    contexts = [statistics_of(rows), empty_statistics()]
    found = repeat_candidates(contexts, catalogue, FEATURES, 99, max_popular=5)
    ids = catalogue.item_ids[found.items[0]].tolist()
    assert ids == [popular[1], popular[0], popular[2], popular[4]]
    assert found.new[0].tolist() == [False, True, True, True]
    assert not found.real[1].any()
    expected = [log(1e-3)] * 4 + [*(log(1e-3 / (1 + c)) for c in [0] * 4)]
    without = repeat_candidates(contexts, catalogue, FEATURES, 99)
    torch.testing.assert_close(found.features[0, 0], without.features[0, 0])
    lacked = found.features[0, 1]
    np.testing.assert_allclose(lacked[:4], expected[:4], rtol=1e-5)
    assert lacked[SINCE_LAST] == pytest.approx(log1p(4))
    assert lacked[NEW] == 1


def test_popular_items_are_served_as_in_training(bundle_path: Path) -> None:
    """Probabilities sum to one; what a popular item owes to being one is no repeat."""
    bundle = load_bundle(bundle_path)
    network = bundle.network
    network.config = replace(network.config, repeats=RepeatConfig(max_popular=9, max_favoured=2))
    state = state_of(make_rows(12))
    query = Query(k=len(bundle.catalogue), beam_width=1_000)
    found = Recommender(bundle).recommend(state, query)
    assert sum(np.exp(one.score) for one in found) == pytest.approx(1, abs=1e-4)
    expected = plain_answer(bundle, state, query, 1_000)
    for one in found:
        assert one.score == pytest.approx(expected[one.item.item_id], abs=1e-4)
    had = set(state.rows["item_id"].tolist())
    popular = set(bundle.catalogue.item_ids[bundle.catalogue.by_popularity()[:9]].tolist())
    assert popular - had
    recommender = Recommender(bundle)
    explained = recommender.explain(recommender.encode_state(state), query, found)
    owing = {one.item.item_id for one, why in zip(found, explained, strict=True) if why.repeats}
    assert owing == had
    for why in explained:
        assert why.recent + why.mid_term + why.lifecycle + why.repeats == pytest.approx(1, abs=1e-5)


def test_leaving_out_what_was_had_is_ranked_as_it_is_served(
    bundle_path: Path, event_log: EventLog
) -> None:
    """What is blocked takes nothing of the gate, nor of the popular candidates' shares."""
    bundle, histories = load_bundle(bundle_path), build_histories(event_log)
    network = bundle.network
    network.config = replace(network.config, repeats=RepeatConfig(max_popular=30, max_favoured=2))
    length = histories.train_cuts - histories.user_start[histories.train_cuts]
    cuts = histories.train_cuts[(length > 1) & (length <= 16)][:6]
    builder = BatchBuilder(histories, bundle.catalogue, network.config, bundle.history, 9)
    ranked = rank_at(network, bundle.trie, builder, cuts, 1_000, only_new=True)
    recommender = Recommender(bundle)
    for cut, best in zip(cuts.tolist(), ranked, strict=True):
        rows = histories.rows[histories.user_start[cut] : cut]
        without = ItemFilter(exclude_ids=np.unique(rows["item_id"]))
        asked_ms = int(histories.rows["event_time_ms"][cut])
        query = Query(k=len(bundle.catalogue), beam_width=1_000, filter=without, time_ms=asked_ms)
        served = recommender.recommend(state_of(rows), query)
        assert bundle.catalogue.item_ids[best].tolist() == [one.item.item_id for one in served]


def test_candidates_are_the_strongest_known_items(bundle: Bundle) -> None:
    rows = make_rows(9)
    rows["item_id"], rows["kinds"] = [1, 1, 1, 2, 2, 3, 10_000, 10_000, 10_000], 2
    contexts = [statistics_of(rows), empty_statistics(), statistics_of(rows[-3:])]
    found = repeat_candidates(contexts, bundle.catalogue, FEATURES, 2)
    assert bundle.catalogue.item_ids[found.items[0]].tolist() == [1, 2]
    assert found.items[1:].tolist() == [[-1, -1], [-1, -1]]
    assert found.sids[1:].tolist() == [[-1, -1], [-1, -1]]


def test_an_item_disliked_at_last_is_no_candidate(bundle: Bundle) -> None:
    rows = make_rows(6)
    rows["item_id"], rows["kinds"] = [1, 2, 3, 1, 2, 2], 2
    rows["kinds"][[3, 4]] |= DISLIKE_MASK
    found = repeat_candidates([statistics_of(rows)], bundle.catalogue, FEATURES, 99)
    assert bundle.catalogue.item_ids[found.items[0]].tolist() == [2, 3]
    without = repeat_candidates([statistics_of(rows[[0, 1, 2, 5]])], bundle.catalogue, FEATURES, 99)
    again = bundle.catalogue.item_ids[without.items[0]].tolist().index(2)
    own = slice(NEW + 1)  # the kind's features lack what was disliked
    assert torch.equal(found.features[0, 0, own], without.features[0, again, own])
    nothing = repeat_candidates([statistics_of(rows[3:5])], bundle.catalogue, FEATURES, 99)
    assert not nothing.real.any()


def similarities_of_last(vectors: np.ndarray, candidates: RepeatCandidates) -> list[float]:
    """Of the third candidate, which the history lacks, to the other two."""
    centred = vectors - vectors.mean(0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    similarities = []
    for k in range(len(HALF_LIVES_DAYS)):
        weights = np.exp(candidates.features[0, :2, k].numpy())
        taste = weights[0] * centred[0] + weights[1] * centred[1]
        similarities.append(float(centred[2] @ taste / np.linalg.norm(taste)))
    return similarities


def test_scores_equal_a_loop_over_items() -> None:
    torch.manual_seed(0)
    module = Repeats(LAYER, RepeatConfig(hidden_width=3), 11)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    seen = [[5, 2, 3, 6.5, 1, 7, 9], [1, 0, 0, 0, 2, 3, 4], [2, 2, 4, 2.5, 0, 0, 1]]
    module.set_item_counts(torch.tensor([4, 4, 9]), torch.tensor(seen))
    rows = torch.tensor([[4, 9, 1]])
    candidates = RepeatCandidates(rows, rows, rows[..., None], torch.randn(1, 3, NUM_FEATURES))
    candidates.features[..., NEW] = torch.tensor([0.0, 0.0, 1.0])
    candidates = replace(candidates, popularity=torch.tensor([[2.5, 8.0, 20.0]]))
    vectors = torch.randn(1, 3, 8)
    module.standardise(candidates, vectors)
    counts = {4: (6, 2, 3, 6.5, 3, 10, 13), 9: (2, 2, 4, 2.5, 0, 0, 1), 1: (0,) * 7}
    inputs = []
    for i, row in enumerate([4, 9, 1]):
        buyers, returning, times, log_days, *recent = counts[row]
        interval = (log_days + 10 * 3) / (times + 10)
        overdue = float(candidates.features[0, i, SINCE_LAST]) - interval if row != 1 else 0.0
        of_item = [
            *(log((returning + 2) / (buyers + 20)), *(log(one + 0.5) for one in recent)),
            *(log([3.0, 8.0, 20.0][i]), log(buyers + 1), interval, overdue),
        ]
        similarities = [0.0] * len(HALF_LIVES_DAYS)
        if row == 1:
            similarities = similarities_of_last(vectors[0].numpy(), candidates)
        inputs.append([*candidates.features[0, i].tolist(), *of_item, *similarities])
    table = np.array(inputs)
    x = (table - table.mean(0)) / table.std(0).clip(min=0.1)
    for layer in module.score:
        if isinstance(layer, torch.nn.Linear):
            x = x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
        else:
            x = x / (1 + np.exp(-x))
    own = module.item_score.weight.detach().numpy()[[4, 9, 1], 0]
    expected = table[:, STRENGTH] + x[:, 0] + own
    np.testing.assert_allclose(module.scores(candidates, vectors)[0].detach(), expected, rtol=1e-4)


def test_the_listwise_loss_weighs_every_basket_alike() -> None:
    shares = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.9, 0.0]])
    weights = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])
    expected = -(0.5 * log(0.5) + 0.5 * log(0.25) + log(0.9)) / 2
    assert float(repeat_loss(shares, weights)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (RepeatConfig(max_favoured=1, tail_weight=0.5), [0.125 / 0.8, 0.6 / 0.8, 0.075 / 0.8, 0]),
        (
            RepeatConfig(max_favoured=2, tail_weight=0.1),
            [0.25 / 0.865, 0.6 / 0.865, 0.015 / 0.865, 0],
        ),
        (RepeatConfig(max_favoured=1, tail_weight=1), [0.25, 0.6, 0.15, 0]),
        (RepeatConfig(max_favoured=3), [0.25, 0.6, 0.15, 0]),
    ],
)
def test_the_tail_of_candidates_is_discounted(config: RepeatConfig, expected: list[float]) -> None:
    items, shares = torch.tensor([[3, 5, 7, -1]]), torch.tensor([[0.25, 0.6, 0.15, 0.0]])
    had = torch.zeros(1, 4, dtype=torch.bool)
    gate = torch.tensor([0.4]).log(), torch.tensor([0.6]).log()
    mixture = RepeatMixture(*gate, items, items, shares, had)
    favouring = mixture.favouring(config)
    torch.testing.assert_close(favouring.shares[0], torch.tensor(expected))
    odds = mixture.log_repeat - mixture.log_generator + log(2)  # the generator counts half
    torch.testing.assert_close(favouring.log_repeat - favouring.log_generator, odds)
    torch.testing.assert_close(
        favouring.log_repeat.exp() + favouring.log_generator.exp(), torch.ones(1)
    )
    as_learned = mixture.favouring(replace(config, generator_weight=1))
    torch.testing.assert_close(as_learned.log_repeat, mixture.log_repeat)
    blocked = replace(mixture, shares=torch.zeros(1, 4)).favouring(config)
    assert float(blocked.shares.sum()) == 0
    lacked = replace(mixture, new=torch.ones(1, 4, dtype=torch.bool))
    torch.testing.assert_close(lacked.favouring(config).shares, shares)


def test_what_training_saw_of_items() -> None:
    """Users return to item 1 after 2 and 4 days; two of its five events are of the last week."""
    rows: Rows = np.zeros(8, INTERACTION)
    rows["item_id"] = [1, 1, 1, 2, 1, 1, 3, 3]
    days = np.array([0, 2, 6, 6, 0, 13, 14, 15])
    rows["event_time_ms"] = START_MS + days * DAY_MS
    users = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    histories = build_histories(EventLog(["a", "b"], users, [str(i) for i in range(8)], rows))
    module = Repeats(LAYER, RepeatConfig(), 257)
    describe_items(module, histories, PopularityLog(histories, 257, 86_400 * 3), 257)
    row = hash_buckets(np.array([1], np.uint64), 257)[0]
    # Each user's last basket is held out: item 1 and 2 of day 6, item 3 of day 15.
    expected = [2, 2, 2, log1p(2) + log1p(13), 1, 4, 4]
    np.testing.assert_allclose(module.item_counts[row], expected, rtol=1e-6)
    # On days 0, 0, 2 (another period of three days), 6 and 13, as of the end, day 14.
    counted = sum(2 ** (-age / 3) for age in (14, 14, 12, 8, 1))
    np.testing.assert_allclose(module.popularity[row], counted, rtol=1e-6)


def world(repeats: bool) -> EventLog:
    """Baskets of three: of a user's own six items, or of items that the user never had."""
    random = np.random.default_rng(1)
    num_users, num_baskets, size = 20, 14, 3
    rows: Rows = np.zeros(num_users * num_baskets * size, INTERACTION)
    users = np.tile(np.repeat(np.arange(num_users), size), num_baskets)
    rows["event_time_ms"] = START_MS + DAY_MS * np.repeat(np.arange(num_baskets), num_users * size)
    rows["event_time_ms"] += users * HOUR_MS // 2
    for user in range(num_users):
        order = random.permutation(60) + 1
        if repeats:
            baskets = [random.choice(order[:6], size, replace=False) for _ in range(num_baskets)]
            order = np.concatenate(baskets)
        rows["item_id"][users == user] = order[: num_baskets * size]
    ids = [str(i) for i in range(len(rows))]
    return EventLog([f"user-{i}" for i in range(num_users)], users.astype(np.int64), ids, rows)


@pytest.mark.parametrize(("repeats", "low", "high"), [(False, 0.0, 0.05), (True, 0.7, 1.0)])
def test_the_gate_finds_out_whether_people_repeat(
    repeats: bool, low: float, high: float, tmp_path: Path
) -> None:
    log_of_world = world(repeats)
    config = replace(SMALL, max_steps=60)
    train(log_of_world, None, config, tmp_path / "bundle", Progress(disable=True))
    bundle = load_bundle(tmp_path / "bundle")
    histories = build_histories(log_of_world)
    builder = BatchBuilder(histories, bundle.catalogue, config.network, config.history, 100)
    batch = builder.build(histories.held_out_cuts, 1, 1, None)
    context, _ = encode_batch(bundle.network, batch)
    bos = bundle.network.decode(context, torch.zeros(20, 1, 0, dtype=torch.int64))
    gate = bundle.network.repeat_mixture(batch.repeats, bos).log_repeat.exp()
    assert low <= float(gate.mean()) <= high
