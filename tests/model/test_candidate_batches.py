"""Candidates of training contexts: samples that stand for all, and steps that are the same whatever is in memory."""

import numpy as np
import pytest
import torch

from model.bundle import Bundle
from model.training import candidate_batches
from model.training.batches import BatchBuilder
from model.training.candidate_batches import CandidateBatch, CandidateBatches, _sample
from model.training.draws import StepDraws
from model.training.histories import build_histories
from model.training.losses import listwise_loss, repeat_loss
from state.event_log import EventLog
from tests.model.worlds import SMALL


@pytest.fixture
def builder(event_log: EventLog, bundle: Bundle) -> BatchBuilder:
    histories = build_histories(event_log)
    return BatchBuilder(histories, bundle.catalogue, bundle.network.config, SMALL.history, 100)


def batches_of(builder: BatchBuilder, bundle: Bundle) -> CandidateBatches:
    draws = StepDraws(builder.histories, 3, 8)
    return CandidateBatches(bundle.network, builder, draws, 3)


def test_all_candidates_give_the_shares_of_the_network(
    builder: BatchBuilder, bundle: Bundle
) -> None:
    cuts, network = builder.histories.train_cuts[:6], bundle.network
    batch = batches_of(builder, bundle).of_cuts(cuts)
    candidates, weights = builder.repeats(cuts)
    vectors = network.features.item_vectors(candidates.rows)
    scores = network.repeats.scores(candidates, vectors).masked_fill(~candidates.real, -1e9)
    found = batch.log_shares(network)
    torch.testing.assert_close(
        found.exp(), scores.softmax(1) * candidates.real, atol=2e-3, rtol=1e-2
    )
    torch.testing.assert_close(
        listwise_loss(found, batch.weights),
        repeat_loss(scores.softmax(1), weights),
        rtol=1e-2,
        atol=1e-2,
    )


def test_steps_are_the_same_whatever_is_in_memory(builder: BatchBuilder, bundle: Bundle) -> None:
    one, other = batches_of(builder, bundle), batches_of(builder, bundle)
    steps = [one.of_step(step) for step in range(24)]
    for step in (23, 17, 4, 11):  # another run's, which began there
        again = other.of_step(step)
        for name in ("features", "weights", "log_odds"):
            assert torch.equal(getattr(again, name), getattr(steps[step], name))
    assert len({id(batch) for batch in steps}) == 6


def random_batch(num_candidates: int, seed: int) -> CandidateBatch:
    random = torch.Generator().manual_seed(seed)
    shape = (3, num_candidates)
    real = torch.rand(shape, generator=random) < torch.tensor([[1.0], [0.6], [0.0]])
    weights = (torch.rand(shape, generator=random) < 0.01) * real.float()
    strength = torch.randn(shape, generator=random)
    log_odds = torch.where(real, 0.0, -1e9)
    return CandidateBatch(strength[..., None], strength, weights.long(), weights, log_odds)


def test_a_sample_holds_targets_and_the_strongest_and_stands_for_all() -> None:
    whole = random_batch(900, 0)
    sums = []
    for seed in range(200):
        places, log_odds = _sample(whole, torch.Generator().manual_seed(seed))
        assert all(256 <= len(set(row)) == len(row) < 280 for row in places.tolist())
        kept = log_odds > -1e8
        assert not kept[2].any()
        for row in (0, 1):
            real = whole.log_odds[row] == 0
            chosen = set(places[row][kept[row]].tolist())
            targets = (whole.weights[row] > 0).nonzero().flatten().tolist()
            strongest = torch.where(real, whole.strength[row], -1e9).topk(128).indices.tolist()
            assert chosen >= {*targets, *strongest}
            assert all(real[place] for place in chosen)
            assert log_odds[row][kept[row]].exp().sum() == pytest.approx(int(real.sum()), rel=1e-4)
        weighed = (whole.strength.gather(1, places) + log_odds).logsumexp(1).exp()
        sums.append(weighed[:2].numpy())
    exact = (whole.strength + whole.log_odds).logsumexp(1).exp()[:2].numpy()
    np.testing.assert_allclose(np.mean(sums, 0), exact, rtol=2e-3)


def test_more_targets_than_places_are_all_kept() -> None:
    whole = random_batch(900, 2)
    whole.weights[0, ::4] = 0.1
    places, log_odds = _sample(whole, torch.Generator().manual_seed(0))
    kept = set(places[0][log_odds[0] > -1e8].tolist())
    assert kept >= set(range(0, 900, 4))
    assert log_odds[0][log_odds[0] > -1e8].exp().sum() == pytest.approx(900, rel=1e-4)


def test_few_candidates_are_all_kept() -> None:
    whole = random_batch(40, 1)
    places, log_odds = _sample(whole, torch.Generator().manual_seed(0))
    assert [sorted(row) for row in places.tolist()] == [list(range(40))] * 3
    assert torch.equal(log_odds, whole.log_odds.gather(1, places))


def test_memory_is_bounded(
    builder: BatchBuilder, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidate_batches, "_BATCHES_KEPT", 3)
    batches = batches_of(builder, bundle)
    for step in range(40):
        batches.of_step(step)
        assert len(batches._kept) <= 3
