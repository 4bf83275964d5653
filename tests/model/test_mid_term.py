"""The indexer: scores, selection, teacher, divergence and kept mass against loops, and who learns from which loss."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from model.bundle import Bundle
from model.decoder import IndexerTrace, StreamBranch
from model.layers import Segment
from model.mid_term import KEPT_AT, Indexer, MidTermConfig, kept_mass, teacher_from_logits
from model.network import Network
from model.training.batches import Batch, BatchBuilder
from model.training.histories import build_histories
from model.training.losses import Stage, batch_losses
from state.event_log import EventLog
from tests.model.numpy_network import attention_logits, indexer_scores, softmax, under, weights_of
from tests.model.worlds import SMALL

LAYER = SMALL.network.layer
OPTIONS = [
    {},
    {"teacher": "softmax_of_sums"},
    {"divergence": "indexer_first"},
    {"indexer_relu": True},
    {"teacher": "softmax_of_sums", "divergence": "indexer_first", "indexer_relu": True},
]


def random_keys(num_keys: int, seed: int = 0, batch: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, num_keys, LAYER.width, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("relu", [False, True])
def test_scores_match_loops(relu: bool) -> None:
    config = MidTermConfig(indexer_heads=3, indexer_width=5, indexer_relu=relu)
    indexer = Indexer(LAYER, config).double()
    queries, keys = random_keys(2, seed=1)[0], random_keys(9, batch=2)
    with torch.no_grad():
        scores = indexer(queries, keys).numpy()
    for query, some, found in zip(queries.numpy(), keys.numpy(), scores, strict=True):
        expected = indexer_scores(query, some, weights_of(indexer), 3, relu)
        np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("top_k", [1, 3, 6, 50])
def test_selection_takes_the_best_real_keys(top_k: int) -> None:
    indexer = Indexer(LAYER, MidTermConfig(top_k=top_k))
    scores = torch.tensor([[9.0, 9.0, 0.3, -0.1, 0.7, 0.2], [9.0, 9.0, 9.0, 9.0, 9.0, 0.0]])
    mask = torch.tensor([[False, False, True, True, True, True], [False] * 5 + [True]])
    vectors = torch.arange(6.0)[None, :, None].expand(2, 6, LAYER.width)
    kept, selected = indexer.select(scores, Segment(vectors, mask))
    for row in range(2):
        real = sorted(np.flatnonzero(mask[row]), key=lambda j: -float(scores[row, j]))[:top_k]
        assert selected.vectors[row, selected.mask[row], 0].tolist() == real
        assert kept[row, selected.mask[row]].tolist() == [float(scores[row, j]) for j in real]


@pytest.mark.parametrize("teacher", ["mean_of_softmaxes", "softmax_of_sums"])
def test_both_teachers_match_loops(teacher: Any) -> None:
    branch = StreamBranch(LAYER).double()
    states, keys = random_keys(3, seed=2), random_keys(7)
    mask = torch.tensor([[False, True, True, True, False, True, True]])
    with torch.no_grad():
        queries = branch.query_norm(states)
        found = teacher_from_logits(branch.logits(states, Segment(keys, mask)), teacher)[0]
    logits = attention_logits(
        queries[0].numpy(), keys[0, mask[0]].numpy(), under(weights_of(branch), "attention"), 2
    )
    if teacher == "mean_of_softmaxes":
        expected = np.mean([softmax(logits[a, i]) for a in range(2) for i in range(3)], 0)
    else:
        expected = np.mean([softmax(logits[0, i] + logits[1, i]) for i in range(3)], 0)
    np.testing.assert_allclose(found[mask[0]], expected, atol=1e-12)
    assert found[~mask[0]].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("divergence", ["teacher_first", "indexer_first"])
def test_both_divergences_match_numpy(divergence: Any) -> None:
    """Padding and contexts without a mid-term segment do not count."""
    scores = torch.tensor([[1.0, 0.0, -1.0, 99.0], [2.0, 1.0, 0.0, 0.0], [5.0] * 4])
    teacher = torch.tensor([[0.7, 0.2, 0.1, 0.0], [0.4, 0.6, 0.0, 0.0], [0.25] * 4])
    mask = torch.tensor([[True, True, True, False], [True, True, False, False], [False] * 4])
    expected = []
    for row, num_real in enumerate((3, 2)):
        p, q = teacher[row, :num_real].numpy(), scores[row, :num_real].softmax(0).numpy()
        first, second = (p, q) if divergence == "teacher_first" else (q, p)
        expected.append(np.sum(first * np.log(first / second)))
    indexer = Indexer(LAYER, MidTermConfig(divergence=divergence))
    assert float(indexer.loss(scores, teacher, mask)) == pytest.approx(np.mean(expected), rel=1e-4)


def test_kept_mass_matches_a_plain_loop() -> None:
    random = np.random.default_rng(3)
    scores, mask = (
        random.normal(size=(4, 1500)),
        np.arange(1500) >= np.array([[0], [700], [1400], [1500]]),
    )
    attention = random.random((4, 1500)) * mask
    attention /= attention.sum(1, keepdims=True).clip(min=1e-9)
    expected = []
    for row in range(3):
        best = sorted(np.flatnonzero(mask[row]), key=lambda j: -scores[row, j])
        expected.append([sum(attention[row, j] for j in best[:k]) for k in KEPT_AT])
    found = kept_mass(
        torch.from_numpy(scores), torch.from_numpy(attention), torch.from_numpy(mask), KEPT_AT
    )
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert expected[2][1] == pytest.approx(1.0)


def small_network(seed: int = 1, **mid_term: Any) -> Network:
    torch.manual_seed(seed)
    config = replace(SMALL.network, mid_term=MidTermConfig(top_k=4, indexer_width=4, **mid_term))
    return Network(config, SMALL.history, 3, 6).eval()


@pytest.fixture(scope="module")
def batch(event_log: EventLog, bundle: Bundle) -> Batch:
    histories = build_histories(event_log)
    builder = BatchBuilder(histories, bundle.catalogue, SMALL.network, SMALL.history, 100)
    return builder.build(histories.held_out_cuts[:6], 4, 4, None)


def gradients(network: Network, loss: Tensor) -> dict[str, Tensor]:
    """Those that are not zero, by the parameter's name."""
    names, parameters = zip(*network.named_parameters(), strict=True)
    found: tuple[Tensor | None, ...] = torch.autograd.grad(
        loss, parameters, allow_unused=True, retain_graph=True
    )
    return {n: g for n, g in zip(names, found, strict=True) if g is not None and bool(g.any())}


@torch.no_grad()
def wake(indexer: Indexer, inputs: tuple[Tensor, Tensor]) -> None:
    """Before a call: every head meets some key above zero, and weighs it positively.

    Otherwise, under ReLU, a live head with a negative gate ranks its keys below those that score zero: when none of the
    selected keys is live, the indexer has no gradient at all, and whether that happens is up to the seed.
    """
    query_BH, keys_BMH = inputs
    shape = (indexer.config.indexer_heads, indexer.config.indexer_width)
    keys_BMGI = indexer.to_key(keys_BMH).unflatten(-1, shape)
    met_BMG = (keys_BMGI * indexer.to_query(query_BH).unflatten(-1, shape)[:, None]).sum(-1)
    signs_G = torch.where(met_BMG.mean((0, 1)) > 0, 1.0, -1.0)
    indexer.to_query.weight.mul_(signs_G.repeat_interleave(shape[1])[:, None])
    gates_G = indexer.to_gate(query_BH).amin(0)
    indexer.to_gate.bias.add_((0.5 - gates_G).clamp(min=0))


@pytest.mark.parametrize("seed", [0, 1, 35])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("stage", ["indexer", "selection"])
def test_the_indexer_learns_from_its_own_loss_and_nobody_else_does(
    batch: Batch, bundle: Bundle, stage: Stage, options: dict[str, Any], seed: int
) -> None:
    network = small_network(seed, **options)
    for module in network.modules():
        if isinstance(module, Indexer):
            module.register_forward_pre_hook(wake)
    losses = batch_losses(network, bundle.trie, batch, stage)
    indexer = {name for name, _ in network.named_parameters() if ".indexer." in name}
    own = gradients(network, losses.indexer)
    others = gradients(network, losses.next_token + losses.reconstruction + losses.repeats)
    assert set(own) == indexer
    assert not set(others) & indexer
    together = gradients(network, losses.total(1.0, 1.0))
    assert set(together) == set(own) | set(others)
    for name, gradient in {**own, **others}.items():
        torch.testing.assert_close(together[name], gradient)


def test_the_indexer_learns_its_teacher(batch: Batch, bundle: Bundle) -> None:
    """A hundred steps on one batch: less divergence, more attention kept."""
    network = small_network()
    before = batch_losses(network, bundle.trie, batch, "indexer")
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(100):
        optimiser.zero_grad()
        losses = batch_losses(network, bundle.trie, batch, "indexer")
        losses.indexer.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert losses.indexer.item() < 0.5 * before.indexer.item()
    assert losses.kept > before.kept


def test_the_trace_reports_kept_mass_at_every_k() -> None:
    network, trace = small_network(), IndexerTrace()
    mask = torch.ones(2, 90, dtype=torch.bool)
    mask[1, :40] = False
    items = Segment(random_keys(90, batch=2).float(), mask)
    absent = torch.zeros(2, dtype=torch.bool)
    context = network.encode(
        Segment(items.vectors[:, :5], mask[:, -5:]), items, torch.zeros(2, 0, LAYER.width), absent
    )
    codes = torch.zeros(2, 1, 2, dtype=torch.int64)
    assert trace.kept_by_top_k() == {}
    network.decode(context, codes, select=False, trace=trace)
    kept = trace.kept_by_top_k()
    assert list(kept) == [64, 128, 256, 512, 1024]
    assert 0.5 < kept[64] < 1
    assert kept[128] == pytest.approx(1.0, abs=1e-5)
