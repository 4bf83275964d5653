"""Rows to tensors to vectors."""

import numpy as np
import torch

from model.features import FeatureConfig, ItemFeatures, hash_buckets, to_tensors
from model.layers import LayerConfig
from tests.model.worlds import make_rows


def splitmix(value: int, num_buckets: int) -> int:
    """The slow twin: Python integers."""
    mask = 2**64 - 1
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return 1 + (value ^ (value >> 31)) % (num_buckets - 1)


def test_hash_matches_its_twin_and_keeps_zero_apart() -> None:
    ids = np.array([0, 1, 2, 12345, 2**63, 2**64 - 1], np.uint64)
    buckets = hash_buckets(ids, 101)
    assert buckets[0] == 0
    assert buckets[1:].tolist() == [splitmix(int(i), 101) for i in ids[1:]]


def test_hash_spreads_consecutive_ids() -> None:
    buckets = hash_buckets(np.arange(1, 10_001, dtype=np.uint64), 1001)
    assert np.bincount(buckets, minlength=1001)[1:].max() < 30


def test_kinds_are_multi_hot_and_time_is_absolute() -> None:
    rows = make_rows(3)
    rows["kinds"] = [0, 1 << 1, (1 << 9) | (1 << 3)]
    items = to_tensors(rows, FeatureConfig())
    assert items.dense[0, :10].sum() == 0
    assert items.dense[2, :10].nonzero()[:, 0].tolist() == [3, 9]
    alone = to_tensors(rows[1:2], FeatureConfig())
    assert torch.equal(alone.dense[0], items.dense[1])


def test_missing_and_extreme_values_are_legal() -> None:
    rows = make_rows(2)
    for name in ("item_id", "author_id", "tag", "play_time_ms", "duration_ms", "kinds"):
        rows[name] = [0, np.iinfo(rows[name].dtype).max]
    config = FeatureConfig(item_buckets=50)
    vectors = ItemFeatures(config, LayerConfig(width=8, num_heads=2))(to_tensors(rows, config))
    assert vectors.shape == (2, 8)
    assert torch.isfinite(vectors).all()


def test_item_vectors_start_the_table_weighted_by_counts() -> None:
    features = ItemFeatures(FeatureConfig(item_buckets=2), LayerConfig(width=2, num_heads=1))
    vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    features.set_item_vectors(np.array([5, 6], np.uint64), vectors, np.array([3, 1]))
    torch.testing.assert_close(features.vid.weight[1], torch.tensor([0.75, 0.25]))
