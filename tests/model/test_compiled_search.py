"""The compiled search against its slow twin: random catalogues, with repeats, items beside codes and blocked items, in any mix."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

import model.compiled_search
from model.beam_search import Beams, Limits, beam_search
from model.compiled_search import BlockedItems, compiled_beam_search
from model.next_item import NextItems
from model.repeats import RepeatMixture
from model.trie import Trie
from tests.model.sid_catalogues import NUM_CODES, catalogues

REQUESTS, WIDTH = 3, 8


class Chance:
    """Random states per prefix and request, and code vectors; a logit is their product."""

    def __init__(self, seed: int, num_codes: int) -> None:
        self.seed = seed
        random = np.random.default_rng(seed)
        self.vectors = torch.from_numpy(random.normal(size=(num_codes, WIDTH)).astype(np.float32))
        self.first_logits = self.score_next(torch.zeros(REQUESTS, 1, 0, dtype=torch.int64), None)

    def next_states(self, codes: Tensor, parents: Tensor | None) -> Tensor:
        assert parents is None or parents.shape == codes.shape[:2]
        rows = [
            [
                np.random.default_rng([self.seed, i, *prefix]).normal(size=WIDTH)
                for prefix in prefixes
            ]
            for i, prefixes in enumerate(codes.tolist())
        ]
        return torch.from_numpy(np.array(rows, np.float32))

    def code_vectors(self, level: int) -> Tensor:
        return self.vectors

    def score_next(self, codes: Tensor, parents: Tensor | None) -> Tensor:
        return self.next_states(codes, parents) @ self.vectors.T


def random_mixture(random: np.random.Generator, num_sids: int, *, with_next: bool) -> RepeatMixture:
    """Of a few candidates, some in one SID, some in none; items are two to a SID."""
    sids = torch.from_numpy(random.integers(-1, num_sids, (REQUESTS, 6)))
    shares = torch.from_numpy(random.random((REQUESTS, 6)).astype(np.float32)) * (sids >= 0)
    shares = shares / shares.sum(1, keepdim=True).clamp(min=1e-30)
    gate = torch.from_numpy(random.uniform(0.1, 0.9, REQUESTS).astype(np.float32))
    next_items = None
    if with_next:
        logits = torch.from_numpy(random.normal(size=(REQUESTS, 2 * num_sids)).astype(np.float32))
        weight = torch.tensor([0.0, 0.3, 0.8])
        starts = torch.arange(num_sids + 1) * 2
        next_items = NextItems.of(logits.log_softmax(1), weight, starts)
    new = torch.zeros(sids.shape, dtype=torch.bool)
    return RepeatMixture((1 - gate).log(), gate.log(), sids, sids, shares, new, next_items)


@settings(max_examples=150, deadline=None)
@given(
    catalogues(),
    st.integers(0, 1000),
    st.integers(1, 50),
    st.sampled_from(["codes", "repeats", "repeats and items"]),
    st.booleans(),
)
def test_it_finds_what_its_twin_finds(
    catalogue: tuple[np.ndarray, np.ndarray], seed: int, width: int, says: str, blocks: bool
) -> None:
    sids, counts = catalogue
    trie, chance = Trie(sids, counts), Chance(seed, NUM_CODES[sids.shape[1]])
    random = np.random.default_rng(seed)
    mixture = None
    if says != "codes":
        mixture = random_mixture(random, len(sids), with_next=says == "repeats and items")
    blocked = limits = None
    if blocks:
        starts = np.append(0, np.cumsum(random.integers(1, 4, len(sids))))
        masks = [random.random(starts[-1]) < share for share in (0.3, 0.9)]
        blocked = BlockedItems([*masks, None], starts)
        by_sid = [np.logical_and.reduceat(mask, starts[:-1]) for mask in masks]
        by_sid.append(np.zeros(len(sids), np.bool_))
        nodes = [trie.blocked_nodes(torch.from_numpy(hidden)) for hidden in by_sid]
        limits = Limits(blocked=[torch.stack(level) for level in zip(*nodes, strict=True)])
    expected = beam_search(chance.score_next, trie, REQUESTS, width, mixture, limits or Limits())
    check_same(compiled_beam_search(chance, trie, REQUESTS, width, mixture, blocked), expected)


def check_same(found: Beams, expected: Beams) -> None:
    """SIDs with their codes and probabilities, and what was dropped; nothing ties."""
    torch.testing.assert_close(
        found.dropped_log_probs, expected.dropped_log_probs, atol=1e-4, rtol=1e-4
    )
    for row in range(REQUESTS):
        real, wanted = (beams.log_probs[row] > -torch.inf for beams in (found, expected))
        assert found.sids[row][real].tolist() == expected.sids[row][wanted].tolist()
        assert found.codes[row][real].tolist() == expected.codes[row][wanted].tolist()
        for name in ("log_probs", "generator_log_probs"):
            ours, theirs = getattr(found, name)[row][real], getattr(expected, name)[row][wanted]
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_many_beams_are_sorted_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of choosing give the same beams, ties in the same order."""
    sids = np.array(list(itertools.product(range(4), repeat=3)))
    trie, chance = Trie(sids, np.ones(len(sids), np.int64)), Chance(1, 4)
    chance.vectors = torch.zeros_like(chance.vectors)
    chance.first_logits = torch.zeros_like(chance.first_logits)
    few = compiled_beam_search(chance, trie, REQUESTS, 10)
    monkeypatch.setattr(model.compiled_search, "_FEW", 0)
    many = compiled_beam_search(chance, trie, REQUESTS, 10)
    assert few.sids[0].tolist() == list(range(10))
    check_same(many, few)


@pytest.mark.parametrize(("with_sibling", "asked"), [(True, [3, 1]), (False, [3])])
def test_a_last_code_that_is_forced_is_not_asked_for(with_sibling: bool, asked: list[int]) -> None:
    """Codes before it are, though their logits say nothing either: what follows attends to them."""
    sids = np.array([(0, 0, 0), (0, 0, 1), (1, 1, 1), (2, 0, 2)][not with_sibling :])
    widths: list[int] = []

    class Counting(Chance):
        def next_states(self, codes: Tensor, parents: Tensor | None) -> Tensor:
            if codes.shape[-1]:
                widths.append(codes.shape[1])
            return super().next_states(codes, parents)

    chance, trie = Counting(3, 4), Trie(sids, np.ones(len(sids), np.int64))
    beams = compiled_beam_search(chance, trie, REQUESTS, 4)
    assert widths == asked
    assert sorted(beams.sids[0].tolist()) == list(range(len(sids)))
