"""The trie and the beam search against plain loops and brute force over every SID of random small catalogues."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from model.beam_search import Beams, Limits, beam_search
from model.errors import CatalogueError
from model.repeats import RepeatMixture
from model.trie import Trie
from tests.model.sid_catalogues import NUM_CODES, catalogues

Sids = tuple[tuple[int, ...], ...]


class Table:
    """Random logits [K] per prefix and request; with ties, they are 0 or 1."""

    def __init__(self, seed: int, num_codes: int, *, ties: bool = False) -> None:
        self.seed, self.num_codes, self.ties = seed, num_codes, ties

    def logits(self, prefix: tuple[int, ...], request: int) -> np.ndarray:
        random = np.random.default_rng([self.seed, request, len(prefix), *prefix])
        logits = random.normal(size=self.num_codes).astype(np.float32)
        return (logits > 0).astype(np.float32) if self.ties else logits

    def score_next(self, codes: Tensor, _: Tensor | None = None) -> Tensor:
        rows = [
            [self.logits(tuple(prefix), request) for prefix in beams]
            for request, beams in enumerate(codes.tolist())
        ]
        return torch.from_numpy(np.array(rows))


def child_log_probs(
    sids: Sids, weights: np.ndarray, table: Table, request: int, prefix: tuple[int, ...]
) -> dict[int, float]:
    """Log-probabilities of the codes that follow a prefix, by the definition."""
    mass: Counter[int] = Counter()
    for sid, weight in zip(sids, weights.tolist(), strict=True):
        if sid[: len(prefix)] == prefix:
            mass[sid[len(prefix)]] += weight
    logits = table.logits(prefix, request)
    scores = {c: float(logits[c]) + np.log(m / mass.total()) for c, m in mass.items()}
    total = np.log(sum(np.exp(list(scores.values()))))
    return {code: score - total for code, score in scores.items()}


def brute_force(sids: np.ndarray, counts: np.ndarray, table: Table, request: int) -> np.ndarray:
    """Log-probability of every SID."""
    everything, weights = tuple(map(tuple, sids.tolist())), np.maximum(counts, 1)
    return np.array(
        [
            sum(
                child_log_probs(everything, weights, table, request, sid[:i])[sid[i]]
                for i in range(len(sid))
            )
            for sid in everything
        ]
    )


def plain_beam_search(
    sids: np.ndarray, counts: np.ndarray, table: Table, width: int, cap: int | None = None
) -> list[tuple[float, tuple[int, ...]]]:
    """(log-probability, SID), best first: Python lists and sorting."""
    everything, weights = tuple(map(tuple, sids.tolist())), np.maximum(counts, 1)
    beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for _ in range(sids.shape[1]):
        grown = [
            (total + log_prob, (*prefix, code))
            for total, prefix in beams
            for code, log_prob in child_log_probs(everything, weights, table, 0, prefix).items()
        ]
        beams, taken = [], Counter[int]()
        for total, prefix in sorted(grown, reverse=True):
            if len(beams) < width and (cap is None or taken[prefix[0]] < cap):
                beams.append((total, prefix))
                taken[prefix[0]] += 1
    return beams


def real_beams(beams: Beams, request: int = 0) -> list[tuple[float, tuple[int, ...]]]:
    real = beams.log_probs[request] > -torch.inf
    codes = beams.codes[request][real].tolist()
    return list(zip(beams.log_probs[request][real].tolist(), map(tuple, codes), strict=True))


def check_valid(beams: Beams, sids: np.ndarray) -> None:
    """Distinct SIDs of the catalogue, numbered as there, best first."""
    for request in range(len(beams.sids)):
        real = beams.log_probs[request] > -torch.inf
        numbers = beams.sids[request][real].tolist()
        assert len(numbers) >= 1
        assert len(set(numbers)) == len(numbers)
        np.testing.assert_array_equal(beams.codes[request][real], sids[numbers])
        assert (beams.log_probs[request].diff() <= 0)[real[1:]].all()


@settings(max_examples=60, deadline=None)
@given(catalogues(), st.integers(0, 1000), st.integers(1, 40), st.booleans())
def test_the_best_are_those_of_brute_force(
    catalogue: tuple[np.ndarray, np.ndarray], seed: int, wanted: int, ties: bool
) -> None:
    """Widened until the last wanted SID is proven: the top of the whole catalogue, and its values."""
    sids, counts = catalogue
    table, trie, width = (
        Table(seed, NUM_CODES[sids.shape[1]], ties=ties),
        Trie(sids, counts),
        wanted,
    )
    beams = beam_search(table.score_next, trie, 2, width)
    while (beams.log_probs[:, :wanted][:, -1] < beams.dropped_log_probs).any():
        assert width < len(sids)
        width *= 2
        beams = beam_search(table.score_next, trie, 2, width)
    check_valid(beams, sids)
    for request in range(2):
        expected = brute_force(sids, counts, table, request)
        assert np.exp(expected).sum() == pytest.approx(1.0, abs=1e-4)
        found = real_beams(beams, request)[:wanted]
        best = np.sort(expected)[::-1][:wanted]
        assert len(found) == min(wanted, len(sids))
        np.testing.assert_allclose([log_prob for log_prob, _ in found], best, atol=1e-4)
        numbers = beams.sids[request, : len(found)].tolist()
        np.testing.assert_allclose(expected[numbers], best, atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(catalogues(), st.integers(0, 1000), st.integers(1, 40), st.booleans())
def test_nothing_that_was_dropped_is_better_than_said(
    catalogue: tuple[np.ndarray, np.ndarray], seed: int, width: int, ties: bool
) -> None:
    sids, counts = catalogue
    table = Table(seed, NUM_CODES[sids.shape[1]], ties=ties)
    beams = beam_search(table.score_next, Trie(sids, counts), 1, width)
    check_valid(beams, sids)
    found = {sid for _, sid in real_beams(beams)}
    expected = brute_force(sids, counts, table, 0)
    left = [p for sid, p in zip(sids.tolist(), expected, strict=True) if tuple(sid) not in found]
    assert max(left, default=-np.inf) <= float(beams.dropped_log_probs) + 1e-4
    if width >= len(sids):
        assert not left
        assert float(beams.dropped_log_probs) == -np.inf


@settings(max_examples=60, deadline=None)
@given(
    catalogues(), st.integers(0, 1000), st.integers(1, 12), st.one_of(st.none(), st.integers(1, 4))
)
def test_any_beam_is_that_of_plain_loops(
    catalogue: tuple[np.ndarray, np.ndarray], seed: int, width: int, cap: int | None
) -> None:
    """With and without a cap on the beams that share their first code."""
    sids, counts = catalogue
    table = Table(seed, NUM_CODES[sids.shape[1]])
    trie = Trie(sids, counts)
    beams = beam_search(table.score_next, trie, 1, width, limits=Limits(cap))
    check_valid(beams, sids)
    expected = plain_beam_search(sids, counts, table, width, cap)
    found = real_beams(beams)
    assert [sid for _, sid in found] == [sid for _, sid in expected]
    np.testing.assert_allclose([p for p, _ in found], [p for p, _ in expected], atol=1e-4)
    if cap is not None:
        assert max(Counter(sid[0] for _, sid in found).values()) <= cap


@settings(max_examples=40, deadline=None)
@given(catalogues(), st.integers(0, 1000), st.integers(1, 12))
def test_blocked_sids_are_as_good_as_absent(
    catalogue: tuple[np.ndarray, np.ndarray], seed: int, width: int
) -> None:
    """The beams are the best of the others, and all of them where the beam is wide enough; nothing else is dropped."""
    sids, counts = catalogue
    table, trie = Table(seed, NUM_CODES[sids.shape[1]]), Trie(sids, counts)
    blocked = np.random.default_rng(seed).random(len(sids)) < 0.5
    nodes = [mask[None] for mask in trie.blocked_nodes(torch.from_numpy(blocked))]
    for level, mask in enumerate(nodes):
        paths = trie.paths_SD[:, level].numpy()
        assert mask[0].tolist() == [blocked[paths == n].all() for n in range(mask.shape[1])]
    everything = beam_search(table.score_next, trie, 1, len(sids), limits=Limits(blocked=nodes))
    found = real_beams(everything)
    assert {sid for _, sid in found} == {tuple(s) for s in sids[~blocked].tolist()}
    assert float(everything.dropped_log_probs) == -np.inf
    few = beam_search(table.score_next, trie, 1, width, limits=Limits(blocked=nodes))
    proven = [pair for pair in real_beams(few) if pair[0] > float(few.dropped_log_probs)]
    assert proven == found[: len(proven)]


def test_diversity_gives_more_first_codes() -> None:
    """One first code holds almost all probability: without a cap it takes every beam."""
    sids = np.array(list(itertools.product(range(5), repeat=2)))
    counts = np.where(sids[:, 0] == 3, 1000, 1)

    def silence(codes: Tensor, _: Tensor) -> Tensor:
        return torch.zeros(1, codes.shape[1], 5)

    plain, diverse = (
        {
            sid[0]
            for _, sid in real_beams(
                beam_search(silence, Trie(sids, counts), 1, 5, limits=Limits(cap))
            )
        }
        for cap in (None, 1)
    )
    assert plain == {3}
    assert diverse == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(("with_sibling", "asked"), [(True, [1, 3, 1]), (False, [1, 3])])
def test_a_last_code_that_is_forced_is_not_asked_for(with_sibling: bool, asked: list[int]) -> None:
    """Codes before it are, though their logits say nothing either: what follows attends to them."""
    sids = np.array([(0, 0, 0), (0, 0, 1), (1, 1, 1), (2, 0, 2)][not with_sibling :])
    counts, table = np.ones(len(sids), np.int64), Table(3, 4)
    widths: list[int] = []

    def score_next(codes: Tensor, parents: Tensor) -> Tensor:
        widths.append(codes.shape[1])
        assert parents.shape == codes.shape[:2]
        return table.score_next(codes)

    beams = beam_search(score_next, Trie(sids, counts), 1, 4)
    assert widths == asked
    expected = brute_force(sids, counts, table, 0)
    numbers = beams.sids[0, : len(sids)].tolist()
    assert sorted(numbers) == list(range(len(sids)))
    np.testing.assert_allclose(beams.log_probs[0, : len(sids)], expected[numbers], atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(catalogues(), st.integers(0, 1000))
def test_repeats_are_mixed_per_whole_sid(
    catalogue: tuple[np.ndarray, np.ndarray], seed: int
) -> None:
    sids, counts = catalogue
    random = np.random.default_rng(seed)
    history = random.integers(-1, len(sids), 5)
    history[0] = 0
    shares = random.random(5) * (history >= 0)
    shares /= shares.sum()
    mixture = RepeatMixture(
        torch.tensor([0.3]).log(),
        torch.tensor([0.7]).log(),
        torch.tensor(history)[None],
        torch.tensor(history)[None],
        torch.tensor(shares, dtype=torch.float32)[None],
        torch.zeros(1, 5, dtype=torch.bool),
    )
    table = Table(seed, NUM_CODES[sids.shape[1]])
    beams = beam_search(table.score_next, Trie(sids, counts), 1, 64, mixture)
    generator = np.exp(brute_force(sids, counts, table, 0))
    repeat = np.array([shares[history == i].sum() for i in range(len(sids))])
    expected = np.log(0.3 * generator + 0.7 * repeat)
    check_valid(beams, sids)
    numbers = beams.sids[0, : len(sids)].tolist()
    assert sorted(numbers) == list(range(len(sids)))
    np.testing.assert_allclose(beams.log_probs[0, : len(sids)], expected[numbers], atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(catalogues())
def test_children_are_those_of_the_sids(catalogue: tuple[np.ndarray, np.ndarray]) -> None:
    sids, counts = catalogue
    trie = Trie(sids, counts)
    for number, sid in enumerate(sids.tolist()):
        parent = 0
        for level in range(sids.shape[1]):
            children = trie.children(level, torch.tensor([parent]))
            codes = children.codes[0][children.real[0]].tolist()
            expected = {s[level] for s in sids.tolist() if s[:level] == sid[:level]}
            assert codes == sorted(expected)
            parent = int(trie.paths_SD[number, level])
            assert parent in children.nodes[0].tolist()
        assert parent == number


def test_sids_out_of_order_or_doubled_are_refused() -> None:
    with pytest.raises(CatalogueError, match="distinct"):
        Trie(np.array([[1, 0], [0, 1]]), np.array([1, 1]))
    with pytest.raises(CatalogueError, match="distinct"):
        Trie(np.array([[1, 0], [1, 0]]), np.array([1, 1]))
    with pytest.raises(CatalogueError, match="needs SIDs"):
        Trie(np.zeros((0, 3), np.int64), np.zeros(0, np.int64))


def test_silence_predicts_popularity() -> None:
    sids, counts = np.array([[0, 0], [0, 1], [2, 0]]), np.array([1, 3, 6])
    beams = beam_search(
        lambda codes, _: torch.zeros(1, codes.shape[1], 3), Trie(sids, counts), 1, beam_width=9
    )
    assert beams.sids[0, :3].tolist() == [2, 1, 0]
    np.testing.assert_allclose(beams.log_probs[0, :3].exp(), [0.6, 0.3, 0.1], rtol=1e-5)
