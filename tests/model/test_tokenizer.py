"""Item vectors, residual k-means and its health report."""

import numpy as np
import pytest
import torch

from model.errors import ModelConfigError
from model.tokenizer.health import tokenizer_health
from model.tokenizer.item_vectors import item_vectors
from model.tokenizer.residual_kmeans import ResidualKMeans
from model.tokenizer.tokenizer import TokenizerConfig


def test_items_used_together_get_similar_vectors() -> None:
    random = np.random.default_rng(0)
    users = np.repeat(np.arange(200), 10)
    items = users % 2 * 10 + random.integers(0, 10, len(users))
    torch.manual_seed(0)
    vectors = item_vectors(users, items, 21, window=5, width=4)
    similar = (vectors @ vectors.T).numpy()
    assert similar[:10, :10].mean() > 0.9
    assert abs(similar[:10, 10:20].mean()) < 0.3
    assert vectors[20].abs().sum() == 0


def test_unknown_items_and_lonely_interactions_are_legal() -> None:
    lonely = item_vectors(np.arange(3), np.array([0, -1, 1]), 2, window=5, width=4)
    assert lonely.abs().sum() == 0
    assert item_vectors(np.zeros(0, np.int64), np.zeros(0, np.int64), 2, 5, 4).shape == (2, 4)


@pytest.fixture(scope="module")
def clustered() -> torch.Tensor:
    centres = torch.randn(8, 5, generator=torch.Generator().manual_seed(1)) * 5
    noise = torch.randn(400, 5, generator=torch.Generator().manual_seed(2)) * 0.3
    return centres.repeat(50, 1) + noise


CONFIG = TokenizerConfig(num_levels=2, codebook_size=8, vector_width=5)


def test_codes_are_nearest_centroids_of_residuals(clustered: torch.Tensor) -> None:
    fitted = ResidualKMeans.fit(clustered, CONFIG, torch.Generator().manual_seed(0))
    codes = fitted.assign(clustered).numpy()
    for vector, code in zip(clustered.numpy()[:50], codes, strict=False):
        residual = vector.copy()
        for level in range(2):
            centroids = fitted.codebooks[level].numpy()
            assert code[level] == np.square(residual - centroids).sum(1).argmin()
            residual -= centroids[code[level]]


def test_new_items_get_codes_without_refitting(clustered: torch.Tensor) -> None:
    fitted = ResidualKMeans.fit(clustered, CONFIG, torch.Generator().manual_seed(0))
    before = fitted.codebooks.clone()
    near = fitted.assign(clustered[:8] + 1e-4)
    assert torch.equal(near[:, 0], fitted.assign(clustered[:8])[:, 0])
    assert torch.equal(before, fitted.codebooks)


def test_fitting_is_repeatable_and_levels_reduce_the_residual(clustered: torch.Tensor) -> None:
    one, two = (
        ResidualKMeans.fit(clustered, CONFIG, torch.Generator().manual_seed(3)) for _ in range(2)
    )
    assert torch.equal(one.codebooks, two.codebooks)
    codes = one.assign(clustered)
    first = clustered - one.codebooks[0][codes[:, 0]]
    second = first - one.codebooks[1][codes[:, 1]]
    assert second.square().sum() < first.square().sum() < clustered.square().sum()


def test_dead_codes_are_seeded_again() -> None:
    vectors = torch.cat([torch.zeros(100, 3), torch.eye(3) * 9])
    config = TokenizerConfig(num_levels=1, codebook_size=4, vector_width=3)
    fitted = ResidualKMeans.fit(vectors, config, torch.Generator().manual_seed(0))
    assert len(set(fitted.assign(vectors).flatten().tolist())) == 4


def test_fewer_items_than_codes_is_legal() -> None:
    vectors = torch.randn(3, 5)
    fitted = ResidualKMeans.fit(vectors, CONFIG, torch.Generator().manual_seed(0))
    assert fitted.assign(vectors).shape == (3, 2)


def test_health_counts_codes_and_buckets() -> None:
    health = tokenizer_health(np.array([[0, 1], [0, 1], [1, 2], [1, 3]]), codebook_size=4)
    assert [level.entropy_bits for level in health.levels] == [1.0, 1.5]
    assert [level.dead_codes for level in health.levels] == [2, 1]
    assert [level.largest_code for level in health.levels] == [2, 2]
    assert (health.num_items, health.num_sids, health.largest_bucket) == (4, 3, 2)
    assert health.unique_ratio == 0.5


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(ModelConfigError, match="codebook_size is 0"):
        TokenizerConfig(codebook_size=0)
