"""SASRec and the TIGER-style ranker: what they learn, what they may see, and their slow twins."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.quality.full_softmax import full_softmax_loss
from bench.quality.neural_fit import Fit, Schedule
from bench.quality.registry import make_ranker
from bench.quality.sasrec import Sasrec, SasrecSettings
from bench.quality.sasrec_network import SasrecConfig, SasrecNetwork
from bench.quality.task import Budget, Detailed, Ranker, Task
from bench.quality.tiger import (
    SidCatalogue,
    Tiger,
    TigerSettings,
    arrange_targets,
    constrained_beams,
)
from bench.quality.tiger_network import TigerConfig, TigerNetwork
from bench.quality.windows import Batch
from tests.bench.planted import planted_task

BUDGET = Budget(minutes=1, seed=0, num_threads=1)


def sasrec(steps: int, seed: int = 0) -> Sasrec:
    network = SasrecConfig(width=32, num_blocks=1, ffn_width=32, max_len=8, dropout=0.1)
    schedule = Schedule(learning_rate=1e-2, max_steps=steps, num_judgements=4)
    return Sasrec(SasrecSettings(network=network, schedule=schedule, batch_tokens=256, bf16=False))


def tiger(steps: int) -> Tiger:
    network = TigerConfig(width=32, num_heads=2, ffn_width=32, num_layers=1, max_items=4, dropout=0)
    schedule = Schedule(learning_rate=1e-2, max_steps=steps, num_judgements=4)
    settings = TigerSettings(network=network, schedule=schedule, batch_items=128, bf16=False)
    return Tiger(replace(settings, validation_cuts=100, validation_beam_width=5))


MAKERS: dict[str, Callable[[int], Ranker]] = {"sasrec": sasrec, "tiger": tiger}


@pytest.fixture(scope="module")
def task() -> Task:
    return planted_task()


def hits_at_1(ranker: Ranker, task: Task) -> float:
    firsts = [ranking[0] for ranking in ranker.rank(task, task.cuts)]
    return float(np.mean(firsts == task.histories.rows["item_id"][task.cuts]))


@pytest.mark.parametrize("name", MAKERS)
def test_learns_what_follows_what(name: str, task: Task) -> None:
    ranker = MAKERS[name](200)
    ranker.fit(task, BUDGET)
    assert ranker.name == name == make_ranker(name).name
    assert hits_at_1(ranker, task) > 0.9
    assert isinstance(ranker, Detailed)
    details = ranker.details()
    assert details["steps"] == 200 >= details["best_step"]
    assert details["validation_ndcg_at_10"] > 0.9


@pytest.mark.parametrize("name", MAKERS)
def test_one_seed_gives_one_ranking(name: str, task: Task) -> None:
    rankings = []
    for seed in (0, 0, 1):
        ranker = MAKERS[name](20)
        ranker.fit(task, replace(BUDGET, seed=seed))
        rankings.append(np.concatenate(list(ranker.rank(task, task.cuts[:20]))))
    assert rankings[0].tolist() == rankings[1].tolist() != rankings[2].tolist()


@pytest.mark.parametrize("name", MAKERS)
def test_a_ranking_knows_nothing_of_what_comes_at_or_behind_the_cut(name: str, task: Task) -> None:
    ranker = MAKERS[name](5)
    ranker.fit(task, BUDGET)
    cut = task.cuts[:1] - 3
    rows = task.histories.rows.copy()
    rows["item_id"][cut[0] : cut[0] + 4] = task.items.item_ids[:4]
    other = replace(task, histories=replace(task.histories, rows=rows))
    before, after = (next(iter(ranker.rank(of, cut))) for of in (task, other))
    assert before.tolist() == after.tolist()
    assert not np.isin(before, task.seen(int(cut[0]))).any()


def test_positions_see_what_is_before_them_alone() -> None:
    torch.manual_seed(0)
    network = SasrecNetwork(SasrecConfig(width=16, max_len=8, gap_buckets=4), 20).eval()
    items, hours = torch.randint(0, 20, (3, 8)), torch.arange(8).expand(3, 8) ** 2
    changed = items.clone()
    changed[:, 5:] = torch.tensor([1, -1, 2])
    before, after = network(items, hours), network(changed, hours.where(torch.arange(8) < 5, 99))
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss_and_gradients_are_those_of_a_plain_softmax(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(300, 8).to(dtype).float().requires_grad_()
    table = torch.randn(50, 8).to(dtype).float().requires_grad_()
    bias = torch.randn(50).requires_grad_()
    rows = torch.randint(0, 300, (700,)).sort().values.numpy()
    items, weights = torch.randint(0, 50, (700,)), torch.rand(700)
    plain = -(weights * (hidden @ table.T + bias).log_softmax(1)[rows, items]).sum()
    ours = full_softmax_loss(hidden.to(dtype), table, bias, (rows, items, weights))
    tolerance = 1e-4 if dtype == torch.float32 else 5e-2
    torch.testing.assert_close(ours, plain, rtol=tolerance, atol=tolerance)
    for parameter in (hidden, table, bias):
        (expected,) = torch.autograd.grad(plain, parameter, retain_graph=True)
        (given,) = torch.autograd.grad(ours, parameter, retain_graph=True)
        error = (given - expected).norm() / expected.norm()
        assert error < tolerance


Tiny = tuple[TigerNetwork, SidCatalogue, Tensor]
LENGTHS = torch.tensor([[4], [2], [0]])


@pytest.fixture
def tiny() -> Tiny:
    """Random weights, 30 items of few SIDs, three histories of which one is empty."""
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    catalogue = SidCatalogue(random.integers(0, 3, (30, 2)), random.integers(0, 9, 30))
    config = TigerConfig(width=16, num_heads=2, ffn_width=16, num_layers=2, max_items=4)
    network = TigerNetwork(config, catalogue.codebook_sizes).eval()
    nn.init.normal_(network.tokens.weight)
    codes = torch.from_numpy(catalogue.codes_ND[random.integers(0, 30, (3, 4))])
    codes[1, 2:], codes[2] = -1, -1
    return network, catalogue, codes


def test_beams_are_the_best_of_all_items(tiny: Tiny) -> None:
    network, catalogue, history = tiny
    sids = torch.from_numpy(catalogue.codes_ND)
    with torch.inference_mode():
        encoded = network.encode(history, LENGTHS)
        hidden = network.decode(sids.expand(3, -1, -1)[..., :-1], encoded)
        scores = sum(
            network.logits(hidden[:, :, level], level)
            .log_softmax(-1)
            .gather(2, sids[:, level].expand(3, -1)[..., None])[..., 0]
            for level in range(network.num_levels)
        )
        found, log_probs = constrained_beams(network, catalogue.trie, encoded, 40)
    assert isinstance(scores, Tensor)
    expected, order = scores.sort(1, descending=True)
    places = catalogue.place_of_sid[found[:, :30].numpy()]
    assert places.tolist() == order.tolist()
    torch.testing.assert_close(log_probs[:, :30], expected)
    assert (found[:, 30:] == -1).all()


def test_a_sequence_knows_its_own_context_alone(tiny: Tiny) -> None:
    network, _, history = tiny
    prefixes, lengths = history.new_zeros(3, 2, 1), torch.tensor([[4, 2], [2, 1], [0, 0]])
    changed = history.clone()
    changed[0, 2:], changed[1, 1:] = history[0, 0], history[0, 1]
    with torch.inference_mode():
        before = network.decode(prefixes, network.encode(history, lengths))
        after = network.decode(prefixes, network.encode(changed, lengths))
        alone = network.decode(prefixes[:1], network.encode(history[:1, :2], lengths[:1, 1:]))
    torch.testing.assert_close(before[:2, 1], after[:2, 1])
    torch.testing.assert_close(before[0, 1], alone[0, 1])
    assert not torch.isclose(before[:2, 0], after[:2, 0]).any()


def test_targets_stand_beside_their_contexts() -> None:
    batch = Batch(
        items_BL=np.array([[5, 6, 7], [8, 9, -1]]),
        hours_BL=np.zeros((2, 3), np.int64),
        rows=np.array([1, 2, 3]),
        target_rows=np.array([0, 0, 1, 2]),
        targets=np.array([3, 4, 2, 1]),
        weights=np.array([0.5, 0.5, 1, 1], np.float32),
    )
    targets = arrange_targets(batch)
    assert targets.items_BS.tolist() == [[3, 4, 2], [1, 0, 0]]
    assert targets.num_items_BS.tolist() == [[2, 2, 3], [1, 1, 1]]
    assert targets.weights_BS.tolist() == [[0.5, 0.5, 1], [1, 0, 0]]


def test_items_of_one_sid_differ_in_their_last_code(
    tiny: Tiny,
) -> None:
    _, catalogue, _ = tiny
    assert len({tuple(sid) for sid in catalogue.codes_ND.tolist()}) == 30
    assert catalogue.trie.num_sids == 30
    assert catalogue.codes_ND[catalogue.place_of_sid].tolist() == (
        catalogue.trie.codes_of(torch.arange(30)).tolist()
    )


class Counter:
    """Its quality goes up and down again."""

    def __init__(self) -> None:
        self.network = nn.Linear(1, 1, bias=False)
        self.qualities = iter([0.1, 0.5, 0.4, 0.3, 0.2, 0.9])
        self.weights: list[float] = []

    def batches(self) -> Iterator[int]:
        return itertools.repeat(0, 3)

    def loss(self, _: int) -> Tensor:
        return self.network.weight.sum()

    def quality(self) -> float:
        self.weights.append(self.network.weight.item())
        return next(self.qualities)


def test_a_fit_ends_when_nothing_gets_better_and_keeps_the_best_weights() -> None:
    counter = Counter()
    schedule = Schedule(learning_rate=0.1, max_steps=100, num_judgements=20, patience=3)
    fit = Fit(counter, schedule, seconds=0)
    fit.run()
    assert [judgement.quality for judgement in fit.judgements] == [0.1, 0.5, 0.4, 0.3, 0.2]
    assert fit.judgements[-1].step < 100
    assert counter.network.weight.item() == counter.weights[1] != counter.weights[-1]
