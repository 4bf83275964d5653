"""Rows to tensors to vectors."""

import numpy as np
import pytest
import torch

from model.errors import ModelConfigError
from model.features import FeatureConfig, ItemFeatures, ItemTensors, hash_buckets, to_tensors
from model.layers import LayerConfig
from state.interaction import NUM_KINDS, Rows
from tests.model.numpy_network import bucket, item_vector, weights_of
from tests.model.worlds import make_rows

LAYER = LayerConfig(width=8, num_heads=2)
FEATURES = ["item_id", "author_id", "tag", "event_time_ms", "play_time_ms", "duration_ms", "kinds"]


def vectors(rows: Rows, features: ItemFeatures) -> np.ndarray:
    items = to_tensors(rows, features.config)
    with torch.no_grad():
        return features(ItemTensors(items.ids, items.dense.double())).numpy()


def small_features(item_hashes: int = 1) -> ItemFeatures:
    torch.manual_seed(0)
    config = FeatureConfig(
        item_buckets=50, item_hashes=item_hashes, author_buckets=9, tag_buckets=9
    )
    return ItemFeatures(config, LAYER).double().eval()


@pytest.mark.parametrize("item_hashes", [1, 2, 3])
def test_vectors_match_the_numpy_twin(item_hashes: int) -> None:
    features, rows = small_features(item_hashes), make_rows(40)
    rows["item_id"][:2] = [0, 0x9E3779B97F4A7C15]
    rows["kinds"][3] = 0b1010000010
    weights = weights_of(features)
    expected = [item_vector(row, weights, features.config) for row in rows]
    np.testing.assert_allclose(vectors(rows, features), expected, atol=1e-6)


@pytest.mark.parametrize("name", FEATURES)
def test_every_feature_changes_the_vector(name: str) -> None:
    features, rows = small_features(), make_rows(3)
    changed = rows.copy()
    changed[name][1] = {"kinds": 6, "play_time_ms": 9, "event_time_ms": 0}.get(name, 77)
    before, after = vectors(rows, features), vectors(changed, features)
    assert np.abs(before[1] - after[1]).max() > 1e-4
    np.testing.assert_array_equal(before[[0, 2]], after[[0, 2]])


@pytest.mark.parametrize("name", [n for n in FEATURES if n != "event_time_ms"])
def test_unknown_is_a_value_of_its_own(name: str) -> None:
    """0 = unknown: no real value shares its row, and the vector is finite."""
    rows = make_rows(200)
    rows[name] = np.arange(200)
    items = to_tensors(rows, FeatureConfig(item_buckets=50, author_buckets=9, tag_buckets=9))
    if name == "kinds":
        shown = items.dense[:, :NUM_KINDS].any(-1)
        assert not shown[0]
        assert shown[1:].all()
    else:
        column = ("item_id", "author_id", "tag", "play_time_ms", "duration_ms").index(name)
        assert items.ids[0, column] == 0
        assert (items.ids[1:, column] > 0).all()
    assert np.isfinite(vectors(rows, small_features())).all()


def test_unseen_ids_are_legal() -> None:
    rows = make_rows(3)
    rows["item_id"] = rows["author_id"] = [2**64 - 1, 2**63, 10**18]
    rows["tag"] = 2**32 - 1
    assert np.isfinite(vectors(rows, small_features(2))).all()


def test_hash_matches_its_twin_and_keeps_zero_apart() -> None:
    ids = np.array([0, 1, 2, 12345, 2**63, 2**64 - 1], np.uint64)
    for salt in (0, 12345):
        buckets = hash_buckets(ids, 101, salt)
        assert buckets[0] == 0
        assert buckets.tolist() == [bucket(int(i), 101, salt) for i in ids]
        assert buckets[1:].min() > 0


def test_hash_spreads_consecutive_ids() -> None:
    buckets = hash_buckets(np.arange(1, 10_001, dtype=np.uint64), 1001)
    assert np.bincount(buckets, minlength=1001)[1:].max() < 30


def test_a_second_hash_tells_items_apart() -> None:
    """As many items as buckets: with one hash most share their row, with two hardly any shares both."""
    rows = make_rows(1000)
    rows["item_id"] = np.arange(1, 1001)
    alone = []
    for hashes in (1, 2):
        config = FeatureConfig(item_buckets=1000, item_hashes=hashes)
        ids = np.sort(to_tensors(rows, config).ids[:, :hashes].numpy(), 1)
        _, counts = np.unique(ids, axis=0, return_counts=True)
        alone.append((counts == 1).sum())
    assert alone[0] < 500
    assert alone[1] > 990


def test_log_buckets_are_two_per_octave() -> None:
    rows = make_rows(6)
    rows["play_time_ms"] = [0, 1, 2, 3, 1023, 2**32 - 1]
    columns = to_tensors(rows, FeatureConfig()).ids[:, 3]
    assert columns.tolist() == [0, 2, 4, 4, 20, 64]


def test_kinds_are_multi_hot_and_time_is_absolute() -> None:
    rows = make_rows(3)
    rows["kinds"] = [0, 1 << 1, (1 << 9) | (1 << 3)]
    items = to_tensors(rows, FeatureConfig())
    assert items.dense[0, :10].sum() == 0
    assert items.dense[2, :10].nonzero()[:, 0].tolist() == [3, 9]
    alone = to_tensors(rows[1:2], FeatureConfig())
    assert torch.equal(alone.dense[0], items.dense[1])


@pytest.mark.parametrize("hashes", [1, 2])
def test_item_vectors_start_the_table(hashes: int) -> None:
    """Without collisions the rows of an item sum to its vector; in one bucket, items are weighted by counts."""
    wide = FeatureConfig(item_buckets=100_000, item_hashes=hashes)
    features = ItemFeatures(wide, LayerConfig(width=2, num_heads=1))
    start, ids = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), np.array([5, 6], np.uint64)
    features.set_item_vectors(ids, start, np.array([3, 1]))
    rows = make_rows(2)
    rows["item_id"] = ids
    found = features.vid(to_tensors(rows, wide).ids[:, :hashes]).sum(1)
    torch.testing.assert_close(found, start)
    one = FeatureConfig(item_buckets=2, item_hashes=hashes)
    features = ItemFeatures(one, LayerConfig(width=2, num_heads=1))
    features.set_item_vectors(ids, start, np.array([3, 1]))
    torch.testing.assert_close(features.vid.weight[1] * hashes, torch.tensor([0.75, 0.25]))


def test_sizes_outside_their_limits_name_themselves() -> None:
    with pytest.raises(ModelConfigError, match="item_hashes is 0"):
        FeatureConfig(item_hashes=0)
    with pytest.raises(ModelConfigError, match="tag_buckets is 1"):
        FeatureConfig(tag_buckets=1)
