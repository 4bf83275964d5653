"""The trie and the beam search against brute force over every SID of random small catalogues."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from model.beam_search import ScoreNext, beam_search
from model.errors import CatalogueError
from model.repeats import RepeatMixture
from model.trie import Trie

NUM_CODES, NUM_LEVELS = 4, 3


@st.composite
def catalogues(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Distinct SIDs in order, and counts."""
    everything = list(itertools.product(range(NUM_CODES), repeat=NUM_LEVELS))
    sids = sorted(draw(st.sets(st.sampled_from(everything), min_size=1, max_size=30)))
    counts = draw(st.lists(st.integers(0, 50), min_size=len(sids), max_size=len(sids)))
    return np.array(sids), np.array(counts)


def table_logits(seed: int, batch: int) -> dict[tuple[int, ...], Tensor]:
    """Random logits [B, K] for every prefix."""
    generator = torch.Generator().manual_seed(seed)
    prefixes = [p for n in range(NUM_LEVELS) for p in itertools.product(range(NUM_CODES), repeat=n)]
    return {p: torch.randn(batch, NUM_CODES, generator=generator) for p in prefixes}


def score_from(table: dict[tuple[int, ...], Tensor]) -> ScoreNext:
    def score_next(codes: Tensor) -> Tensor:
        rows = [
            torch.stack([table[tuple(prefix)][b] for prefix in beams])
            for b, beams in enumerate(codes.tolist())
        ]
        return torch.stack(rows)

    return score_next


def brute_force(
    sids: np.ndarray, counts: np.ndarray, table: dict[tuple[int, ...], Tensor], request: int
) -> list[float]:
    """Log-probability of every SID by loops over the definition."""
    weights = np.maximum(counts, 1)
    found = []
    for sid in sids.tolist():
        total = 0.0
        for level in range(NUM_LEVELS):
            prefix = tuple(sid[:level])
            under = [i for i, s in enumerate(sids.tolist()) if tuple(s[:level]) == prefix]
            mass: dict[int, float] = {}
            for i in under:
                mass[int(sids[i, level])] = mass.get(int(sids[i, level]), 0.0) + weights[i]
            scores = {
                code: float(table[prefix][request][code]) + np.log(m / sum(mass.values()))
                for code, m in mass.items()
            }
            total += scores[sid[level]] - np.log(sum(np.exp(list(scores.values()))))
        found.append(total)
    return found


@settings(max_examples=40, deadline=None)
@given(catalogues(), st.integers(0, 1000))
def test_a_wide_beam_finds_what_brute_force_finds(
    catalogue: tuple[np.ndarray, np.ndarray], seed: int
) -> None:
    sids, counts = catalogue
    table = table_logits(seed, batch=2)
    beams = beam_search(score_from(table), Trie(sids, counts), 2, NUM_CODES**NUM_LEVELS)
    for request in range(2):
        expected = np.array(brute_force(sids, counts, table, request))
        assert np.exp(expected).sum() == pytest.approx(1.0, abs=1e-4)
        real = beams.log_probs[request] > -torch.inf
        order = beams.sids[request][real].tolist()
        assert sorted(order) == list(range(len(sids)))
        np.testing.assert_allclose(beams.log_probs[request][real], expected[order], atol=1e-4)
        assert np.all(np.diff(expected[order]) <= 1e-4)


@settings(max_examples=40, deadline=None)
@given(catalogues(), st.integers(0, 1000), st.integers(1, 12))
def test_any_beam_yields_valid_distinct_sids(
    catalogue: tuple[np.ndarray, np.ndarray], seed: int, width: int
) -> None:
    sids, counts = catalogue
    beams = beam_search(score_from(table_logits(seed, 1)), Trie(sids, counts), 1, width)
    real = beams.log_probs[0] > -torch.inf
    codes = [tuple(code) for code in beams.codes[0][real].tolist()]
    assert len(set(codes)) == len(codes)
    assert set(codes) <= {tuple(sid) for sid in sids.tolist()}
    assert [sids[i].tolist() for i in beams.sids[0][real]] == [list(code) for code in codes]
    assert len(codes) >= 1


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
    )
    table = table_logits(seed, 1)
    beams = beam_search(score_from(table), Trie(sids, counts), 1, 64, mixture)
    generator = np.exp(brute_force(sids, counts, table, 0))
    repeat = np.array([shares[history == i].sum() for i in range(len(sids))])
    expected = np.log(0.3 * generator + 0.7 * repeat)
    real = beams.log_probs[0] > -torch.inf
    order = beams.sids[0][real].tolist()
    np.testing.assert_allclose(beams.log_probs[0][real], expected[order], atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(catalogues())
def test_children_are_those_of_the_sids(catalogue: tuple[np.ndarray, np.ndarray]) -> None:
    sids, counts = catalogue
    trie = Trie(sids, counts)
    for number, sid in enumerate(sids.tolist()):
        parent = 0
        for level in range(NUM_LEVELS):
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
        lambda codes: torch.zeros(1, codes.shape[1], 3), Trie(sids, counts), 1, beam_width=9
    )
    assert beams.sids[0, :3].tolist() == [2, 1, 0]
    np.testing.assert_allclose(beams.log_probs[0, :3].exp(), [0.6, 0.3, 0.1], rtol=1e-5)
