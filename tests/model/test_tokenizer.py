"""Residual k-means, balance and health, against plain loops."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from model.errors import ModelConfigError
from model.tokenizer.balance import bounded_codes
from model.tokenizer.fitting import fit_tokenizer, restore_tokenizer
from model.tokenizer.health import tokenizer_health
from model.tokenizer.kmeans import lloyd_step, spread_seeds
from model.tokenizer.residual_codes import mean_residuals, nearest
from model.tokenizer.residual_kmeans import ResidualKMeans
from model.tokenizer.tokenizer import Bounds, KMeansConfig, RqVaeConfig, TokenizerConfig

SIZES = (8, 6)
TINY_VAE = RqVaeConfig(hidden_widths=(6,), latent_width=4, num_steps=3, batch_size=16)


def config_of(sizes: tuple[int, ...], **others: object) -> TokenizerConfig:
    return TokenizerConfig(codebook_sizes=sizes, rq_vae=TINY_VAE, **others)  # type: ignore[arg-type]


def random_vectors(num_items: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(num_items, width, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def clustered() -> Tensor:
    return 5 * random_vectors(8, 5, 1).repeat(50, 1) + 0.3 * random_vectors(400, 5, 2)


def brute_force_codes(vectors: Tensor, codebooks: list[Tensor]) -> npt.NDArray[np.int64]:
    codes = []
    for vector in vectors.numpy().astype(np.float64):
        residual, row = vector.copy(), []
        for centroids in codebooks:
            row.append(int(np.square(residual - centroids.numpy()).sum(1).argmin()))
            residual -= centroids[row[-1]].numpy()
        codes.append(row)
    return np.array(codes)


def test_codes_are_nearest_centroids_of_residuals(clustered: Tensor) -> None:
    fitted = ResidualKMeans.fit(clustered, config_of(SIZES), torch.Generator().manual_seed(0))
    expected = brute_force_codes(clustered, fitted.codebooks)
    assert fitted.assign(clustered).numpy().tolist() == expected.tolist()
    errors = clustered - fitted.decode(fitted.assign(clustered))
    sums = [fitted.codebooks[0][a] + fitted.codebooks[1][b] for a, b in expected]
    torch.testing.assert_close(errors, clustered - torch.stack(sums))


def test_a_lloyd_step_is_the_mean_of_each_codes_items() -> None:
    vectors, centroids = random_vectors(60, 3), random_vectors(5, 3, 1)
    codes = nearest(vectors, centroids)[1]
    moved = lloyd_step(vectors, codes, centroids)
    for code in range(5):
        np.testing.assert_allclose(
            moved[code].numpy(), vectors[codes == code].double().mean(0).numpy(), atol=1e-6
        )


def test_blocks_do_not_change_what_is_nearest() -> None:
    vectors, centroids = random_vectors(5_000, 3), random_vectors(7, 3, 1)
    distances, codes = nearest(vectors, centroids)
    squares = torch.cdist(vectors.double(), centroids.double()).square()
    assert torch.equal(codes, squares.argmin(1))
    torch.testing.assert_close(distances.double(), squares.amin(1), atol=1e-4, rtol=1e-4)


def test_lloyd_on_a_sample_ends_with_all_items() -> None:
    vectors = random_vectors(3_000, 3)
    config = config_of((4,), kmeans=KMeansConfig(points_per_code=20))
    fitted = ResidualKMeans.fit(vectors, config, torch.Generator().manual_seed(0))
    before = lloyd_step(vectors, fitted.assign(vectors)[:, 0], fitted.codebooks[0])
    assert (before - fitted.codebooks[0]).norm(dim=1).max() < 0.2
    whole = ResidualKMeans.fit(vectors, config_of((4,)), torch.Generator().manual_seed(0))
    errors = [nearest(vectors, one.codebooks[0])[0].mean() for one in (fitted, whole)]
    assert errors[0] < 1.1 * errors[1]


def test_seeds_are_items_far_from_each_other() -> None:
    vectors = torch.cat([torch.zeros(100, 3), torch.eye(3) * 9])
    seeds = spread_seeds(vectors, 4, torch.Generator().manual_seed(0))
    assert len({tuple(seed) for seed in seeds.tolist()}) == 4


def test_dead_codes_move_onto_the_worst_served_items() -> None:
    vectors = torch.tensor([[0.0, 0.0], [0.1, 0.0], [5.0, 0.0]])
    moved = lloyd_step(vectors, torch.zeros(3, dtype=torch.int64), torch.ones(2, 2))
    torch.testing.assert_close(moved, torch.tensor([[1.7, 0.0], [5.0, 0.0]]))


@pytest.mark.parametrize("kind", ["residual_kmeans", "rq_vae"])
def test_new_items_far_from_all_codes_are_legal_and_change_nothing(
    clustered: Tensor, kind: str
) -> None:
    fitted = fit_tokenizer(clustered, config_of(SIZES, kind=kind), seed=0)
    before = {name: tensor.clone() for name, tensor in fitted.tensors().items()}
    far = fitted.assign(torch.full((3, 5), 1e6))
    assert ((far >= 0) & (far < torch.tensor(SIZES))).all()
    near = fitted.assign(clustered[:8] + 1e-5)
    assert torch.equal(near[:, 0], fitted.assign(clustered[:8])[:, 0])
    assert all(torch.equal(before[name], tensor) for name, tensor in fitted.tensors().items())


@pytest.mark.parametrize("kind", ["residual_kmeans", "rq_vae"])
def test_fitting_is_repeatable_and_survives_its_tensors(clustered: Tensor, kind: str) -> None:
    config = config_of(SIZES, kind=kind)
    one, two = (fit_tokenizer(clustered, config, seed=3) for _ in range(2))
    for name, tensor in one.tensors().items():
        assert torch.equal(tensor, two.tensors()[name])
    restored = restore_tokenizer(config, one.tensors())
    codes = one.assign(clustered)
    assert torch.equal(codes, restored.assign(clustered))
    assert torch.equal(one.decode(codes), restored.decode(codes))
    with pytest.raises((KeyError, RuntimeError)):
        restore_tokenizer(config_of((8, 6, 6), kind=kind), one.tensors())


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(["residual_kmeans", "rq_vae"]),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5).map(tuple),
    num_items=st.integers(1, 40),
    balance=st.sampled_from([0.0, 1.0, 1.5, 4.0]),
    max_bucket=st.integers(0, 3),
    copies=st.booleans(),
)
def test_any_sizes_fit_encode_decode_and_keep_their_bounds(
    kind: str, sizes: tuple[int, ...], num_items: int, balance: float, max_bucket: int, copies: bool
) -> None:
    vectors = torch.zeros(num_items, 4) if copies else random_vectors(num_items, 4)
    config = config_of(sizes, kind=kind, balance=balance, max_bucket=max_bucket)
    fitted = fit_tokenizer(vectors, config, seed=0)
    codes = fitted.assign(vectors, config.bounds)
    assert codes.shape == (num_items, len(sizes))
    assert ((codes >= 0) & (codes < torch.tensor(sizes))).all()
    for level in range(len(sizes)):
        assert fitted.decode(codes[:, : level + 1]).shape == vectors.shape
        if balance and not (max_bucket and level == len(sizes) - 1):
            most = max(int(balance * num_items / sizes[level]), -(-num_items // sizes[level]))
            assert torch.bincount(codes[:, level]).max() <= most
    if max_bucket:
        check_buckets(codes.numpy(), sizes[-1], max_bucket)


def check_buckets(codes: npt.NDArray[np.int64], last_size: int, max_bucket: int) -> None:
    sids: dict[tuple[int, ...], int] = {}
    prefixes: dict[tuple[int, ...], int] = {}
    for row in codes.tolist():
        sids[tuple(row)] = sids.get(tuple(row), 0) + 1
        prefixes[tuple(row[:-1])] = prefixes.get(tuple(row[:-1]), 0) + 1
    for sid, size in sids.items():
        assert size <= max(max_bucket, -(-prefixes[sid[:-1]] // last_size))


@settings(max_examples=30, deadline=None)
@given(num_items=st.integers(1, 60), num_codes=st.integers(1, 6), seed=st.integers(0, 99))
def test_bounded_codes_are_what_a_loop_over_rounds_gives(
    num_items: int, num_codes: int, seed: int
) -> None:
    vectors, centroids = random_vectors(num_items, 3, seed), random_vectors(num_codes, 3, seed + 1)
    capacity = -(-num_items // num_codes) + seed % 2
    found = bounded_codes(vectors, centroids, capacity).tolist()
    assert found == looped_bounded_codes(vectors.double().numpy(), centroids.numpy(), capacity)


def looped_bounded_codes(
    vectors: npt.NDArray[np.float64], centroids: npt.NDArray[np.float32], capacity: int
) -> list[int]:
    codes = [-1] * len(vectors)
    room = [capacity] * len(centroids)
    while -1 in codes:
        asking: dict[int, list[tuple[float, int]]] = {}
        for item, vector in enumerate(vectors):
            if codes[item] == -1:
                squares = np.square(vector - centroids).sum(1)
                ranked = sorted((squares[k], k) for k in range(len(centroids)) if room[k])
                regret = ranked[1][0] - ranked[0][0] if len(ranked) > 1 else np.inf
                asking.setdefault(ranked[0][1], []).append((-regret, item))
        for code, items in asking.items():
            for _, item in sorted(items)[: room[code]]:
                codes[item] = code
        for code in range(len(centroids)):
            room[code] = capacity - codes.count(code)
    return codes


def test_codes_without_bounds_are_nearest_with_bounds_that_bind_nothing(clustered: Tensor) -> None:
    fitted = fit_tokenizer(clustered, config_of(SIZES), seed=0)
    assert torch.equal(fitted.assign(clustered), fitted.assign(clustered, Bounds(100.0, 1_000)))


def test_code_directions_are_means_of_residuals() -> None:
    vectors = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 8.0]])
    means = mean_residuals(vectors, torch.tensor([[0, 0], [0, 1], [2, 1]]), 3)
    assert means[0].tolist() == [[2, 0], [0, 0], [0, 8]]
    assert means[1].tolist() == [[-1, 0], [0.5, 0], [0, 0]]


def test_health_counts_codes_and_buckets() -> None:
    vectors = torch.tensor([[0.0], [0.0], [4.0], [6.0]])
    tokenizer = ResidualKMeans(
        [torch.tensor([[0.0], [5.0], [9.0], [9.0]]), torch.tensor([[1.0], [0.0], [-1.0], [1.0]])]
    )
    codes = np.array([[0, 1], [0, 1], [1, 2], [1, 3]])
    health = tokenizer_health(tokenizer, vectors, codes, (4, 4))
    first, second = health.levels
    assert (first.entropy_bits, second.entropy_bits) == (1.0, 1.5)
    assert (first.entropy_share, second.entropy_share) == (0.5, 0.75)
    assert (first.dead_codes, second.dead_codes) == (2, 1)
    assert (first.largest_code, second.largest_code) == (2, 2)
    assert (first.num_buckets, first.mean_bucket, first.largest_bucket) == (2, 2, 2)
    assert (second.num_buckets, second.largest_bucket) == (3, 2)
    assert second.p99_bucket == pytest.approx(1.98)
    assert first.unexplained == pytest.approx(2 / 27)
    assert second.unexplained == 0
    assert (health.num_items, health.num_sids, health.largest_bucket) == (4, 3, 2)
    assert health.unique_ratio == 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"codebook_sizes": (4, 0)}, "each must be at least 1"),
        ({"codebook_sizes": ()}, "0 levels; 1 to 5"),
        ({"codebook_sizes": (2,) * 6}, "6 levels; 1 to 5"),
        ({"balance": 0.5}, "balance is 0.5"),
        ({"max_bucket": -1}, "max_bucket is -1"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        TokenizerConfig(**settings)  # type: ignore[arg-type]
    with pytest.raises(ModelConfigError, match="finite"):
        fit_tokenizer(torch.tensor([[torch.nan]]), config_of((2,)), 0)
