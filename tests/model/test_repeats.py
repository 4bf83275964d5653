"""Repeats: smoothed counts to begin with, and the two sums that must agree."""

import numpy as np
import pytest
import torch

from model.bundle import Bundle
from model.layers import LayerConfig
from model.repeats import RepeatMixture, RepeatRows, Repeats, repeat_rows
from tests.model.worlds import HOUR_MS, make_rows

LAYER = LayerConfig(width=8, num_heads=2)


def untrained(sids: list[int], bos: torch.Tensor | None = None) -> RepeatMixture:
    numbers = torch.tensor([sids])
    rows = RepeatRows(numbers, numbers, torch.zeros(1, len(sids), 3, dtype=torch.int64))
    return Repeats(LAYER)(rows, torch.randn(1, len(sids), 8), torch.randn(1, 8))


def test_an_untrained_module_smooths_counts() -> None:
    """(count + e^-b P_generator) / (n + e^-b), interactions outside the catalogue left out."""
    mixture = untrained([3, 5, 3, -1, 3])
    generator = torch.tensor([[0.2, 0.1, 0.05]])
    sids = torch.tensor([[3, 5, 7]])
    smoothing = np.exp(4.6)
    expected = (np.array([3, 1, 0]) + smoothing * generator[0].numpy()) / (4 + smoothing)
    mixed = mixture.mix(generator.log(), mixture.share_of(sids)).exp()
    np.testing.assert_allclose(mixed[0].detach(), expected, rtol=1e-4)


def test_without_candidates_the_generator_decides() -> None:
    mixture = untrained([-1, -1])
    assert float(mixture.log_generator.detach()) == pytest.approx(0)
    generator = torch.tensor([[-3.0]])
    mixed = mixture.mix(generator, mixture.share_of(torch.tensor([[0]])))
    torch.testing.assert_close(mixed, generator)


def test_shares_of_trie_nodes_add_up_the_shares_of_their_sids(bundle: Bundle) -> None:
    trie = bundle.trie
    sids = torch.tensor([[0, 3, 3, -1, trie.num_sids - 1]])
    mixture = RepeatMixture(
        torch.zeros(1), torch.zeros(1), sids, sids, torch.tensor([[0.1, 0.2, 0.3, 0.0, 0.4]])
    )
    every_sid = torch.arange(trie.num_sids)[None]
    share_of_sids = mixture.share_of(every_sid)[0]
    for level in range(trie.num_levels):
        nodes = mixture.share_of_nodes(trie.nodes_of(sids, level), trie.num_nodes(level))[0]
        expected = torch.zeros(trie.num_nodes(level))
        for sid, share in enumerate(share_of_sids):
            expected[trie.paths_SD[sid, level]] += share
        torch.testing.assert_close(nodes, expected)


def test_statistics_are_rank_days_and_occurrences(bundle: Bundle) -> None:
    rows = make_rows(4)
    rows["item_id"] = [1, 2, 1, 10_000]
    rows["event_time_ms"][0] -= 3 * 24 * HOUR_MS - 3 * HOUR_MS
    items = bundle.catalogue.find(rows["item_id"])
    mask = np.array([[False, True, True, True, True]])
    described = repeat_rows([(rows, items)], mask, bundle.catalogue)
    assert described.items[0].tolist() == [-1, *items.tolist()]
    assert described.sids[0, -1] == -1
    half_octaves = [[4, 4, 2], [4, 1, 0], [2, 1, 2], [0, 0, 0]]
    assert described.buckets[0, 1:].tolist() == half_octaves
