"""Item vectors: co-occurrence, given content, text, and what stands in for what is missing."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

import model.tokenizer.cooccurrence as cooccurrence
from model.errors import CatalogueError, ModelConfigError
from model.tokenizer.content import read_content
from model.tokenizer.cooccurrence import cooccurrence_vectors
from model.tokenizer.fold_in import (
    Companions,
    inverse_second_moment,
    popularity_shares,
    weigh_companions,
)
from model.tokenizer.item_vectors import ItemVectors, principal_axes
from model.tokenizer.item_vectors_file import read_item_vectors, write_item_vectors
from model.tokenizer.text import FittedText, HashedNgrams

IDS = np.array([10, 20, 30], np.uint64)


def test_items_used_together_get_similar_vectors() -> None:
    random = np.random.default_rng(0)
    users = np.repeat(np.arange(200), 10)
    items = users % 2 * 10 + random.integers(0, 10, len(users))
    torch.manual_seed(0)
    vectors = cooccurrence_vectors(users, items, 21, window=5, width=4)
    similar = (vectors @ vectors.T).numpy()
    assert similar[:10, :10].mean() > 0.9
    assert abs(similar[:10, 10:20].mean()) < 0.3
    assert vectors[20].abs().sum() == 0


def test_vectors_are_the_leading_part_of_a_dense_decomposition() -> None:
    random = np.random.default_rng(1)
    users, items = np.repeat(np.arange(40), 20), random.integers(0, 12, 800)
    torch.manual_seed(0)
    vectors = cooccurrence_vectors(users, items, 12, window=3, width=12)
    counts = np.zeros((12, 12))
    for one in range(800):
        for other in range(max(0, one - 3), min(800, one + 4)):
            if users[one] == users[other] and items[one] != items[other]:
                counts[items[one], items[other]] += 1
    smoothed = counts.sum(0) ** 0.75 / (counts.sum(0) ** 0.75).sum()
    with np.errstate(divide="ignore"):
        information = np.maximum(np.log(counts / (counts.sum(1)[:, None] * smoothed)), 0)
    left, singular, _ = np.linalg.svd(information)
    expected = left * np.sqrt(singular)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors @ vectors.T, expected @ expected.T, atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 99), block=st.integers(1, 40), window=st.integers(1, 5))
def test_pairs_counted_in_blocks_are_the_same_pairs(seed: int, block: int, window: int) -> None:
    random = np.random.default_rng(seed)
    users, items = np.sort(random.integers(0, 4, 30)), random.integers(0, 6, 30)
    expected: dict[int, int] = {}
    for one in range(30):
        for other in range(one + 1, min(30, one + window + 1)):
            low, high = sorted((int(items[one]), int(items[other])))
            if users[one] == users[other] and low != high:
                expected[low * 6 + high] = expected.get(low * 6 + high, 0) + 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cooccurrence, "_BLOCK", block)
        keys, counts = cooccurrence._count_pairs(users, items, 6, window)
    assert dict(zip(keys.tolist(), counts.tolist(), strict=True)) == expected
    assert keys.tolist() == sorted(expected)


def test_unknown_items_and_lonely_interactions_are_legal() -> None:
    lonely = cooccurrence_vectors(np.arange(3), np.array([0, -1, 1]), 2, window=5, width=4)
    assert lonely.abs().sum() == 0
    nobody = np.zeros(0, np.int64)
    assert cooccurrence_vectors(nobody, nobody, 2, 5, 4).shape == (2, 4)


def write_content(path: Path, ids: list[int], vectors: list[list[float]]) -> None:
    if path.suffix == ".npz":
        np.savez(path, item_ids=np.array(ids), vectors=np.array(vectors))
    else:
        pyarrow.parquet.write_table(pa.table({"item_id": ids, "vector": vectors}), path)


@pytest.mark.parametrize("suffix", [".parquet", ".npz"])
def test_given_vectors_are_laid_beside_their_items(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"content{suffix}"
    write_content(path, [30, 99, 10], [[1, 2], [3, 4], [5, 6]])
    assert read_content(path, IDS).tolist() == [[5, 6], [0, 0], [1, 2]]


@pytest.mark.parametrize("suffix", [".parquet", ".npz"])
@pytest.mark.parametrize(
    ("ids", "vectors", "message"),
    [
        ([10, 10], [[1, 2], [3, 4]], "item 10 is there twice"),
        ([10, 20], [[1, 2], [3, float("nan")]], "item 20 is not finite"),
        ([1, 2], [[1, 2], [3, 4]], "none of its 2 items"),
        ([-1, 2], [[1, 2], [3, 4]], "cannot be read as item vectors"),
    ],
)
def test_unusable_vectors_are_refused(
    tmp_path: Path, suffix: str, ids: list[int], vectors: list[list[float]], message: str
) -> None:
    path = tmp_path / f"content{suffix}"
    write_content(path, ids, vectors)
    with pytest.raises(CatalogueError, match=message):
        read_content(path, IDS)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="no such file"):
        read_content(tmp_path / "none.npz", IDS)
    for name in ("content.txt", "content.npz", "content.parquet"):
        (tmp_path / name).write_text("x")
        with pytest.raises(CatalogueError, match="must end in|cannot be read"):
            read_content(tmp_path / name, IDS)
    ragged = pa.table({"item_id": [10, 20], "vector": [[1.0], [1.0, 2.0]]})
    pyarrow.parquet.write_table(ragged, tmp_path / "ragged.parquet")
    with pytest.raises(CatalogueError, match="one is needed"):
        read_content(tmp_path / "ragged.parquet", IDS)


def test_texts_that_share_words_are_similar() -> None:
    texts = ["Red apple", "Green apple", "apples", "", "Motor oil", "Oil filter"]
    torch.manual_seed(0)
    encoder = HashedNgrams.fit(texts, width=4)
    vectors = encoder.encode(texts)
    similar = vectors @ vectors.T
    assert similar[0, 1] > similar[0, 4] + 0.2
    assert similar[1, 2] > similar[1, 5] + 0.2
    assert vectors[3].abs().sum() == 0
    restored = HashedNgrams.restore(encoder.tensors())
    assert torch.equal(restored.encode(["green apple", "unseen"])[0], vectors[1])


class WordLength:
    """An encoder from elsewhere."""

    @classmethod
    def fit(cls, texts: list[str], width: int) -> "WordLength":
        return cls()

    def encode(self, texts: list[str]) -> Tensor:
        return torch.tensor([[float(len(text)), 1.0] for text in texts])

    def tensors(self) -> dict[str, Tensor]:
        return {}

    @classmethod
    def restore(cls, tensors: dict[str, Tensor]) -> "WordLength":
        return cls()


def test_a_text_encoder_can_come_from_elsewhere() -> None:
    fitted = FittedText.fit(f"{__name__}:WordLength", ["one"], 2)
    assert fitted.encode(["three"]).tolist() == [[5, 1]]
    with pytest.raises(ModelConfigError, match="module:Class"):
        FittedText.fit("no.such:Encoder", ["one"], 2)


def blocks(content: list[list[float]], behaviour: list[list[float]]) -> ItemVectors:
    parts = [
        ("content", 2.0, torch.tensor(content)),
        ("cooccurrence", 1.0, torch.tensor(behaviour)),
    ]
    return ItemVectors.join(parts)


def test_blocks_are_weighted_and_what_is_missing_comes_from_the_nearest() -> None:
    vectors = blocks([[3, 0], [0, 5], [0, 0]], [[1, 0, 0], [0, 1, 0], [0, 2, 0]]).vectors_RV
    assert vectors[0].tolist() == [2, 0, 1, 0, 0]
    assert vectors[2, 2:].tolist() == [0, 1, 0]
    torch.testing.assert_close(vectors[2, :2].norm(), torch.tensor(2.0))
    nothing = blocks([[3, 0], [0, 0]], [[1, 0, 0], [0, 0, 0]]).vectors_RV
    assert nothing[1].abs().sum() == 0


def seen(*indices: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Companions weighted by how often they are named."""
    distinct, times = np.unique(np.array(indices, np.int64), return_counts=True)
    return distinct, (times / max(len(indices), 1)).astype(np.float32)


def test_companions_weigh_by_surprise() -> None:
    counts = np.array([1_000, 10, 10, 10])
    weighed = weigh_companions(np.array([0, 1, 1, 2]), popularity_shares(counts))
    assert weighed.indices.tolist() == [0, 1, 2]
    popularity = counts**0.75 / (counts**0.75).sum()
    expected = np.maximum(np.log(np.array([1, 2, 1]) / 4 / popularity[:3]), 0)
    np.testing.assert_allclose(weighed.weights, expected / expected.sum(), rtol=1e-5)
    assert weighed.weights[0] == 0
    assert weigh_companions(np.zeros(0, np.int64), popularity_shares(counts)).indices.tolist() == []
    assert weigh_companions(
        np.array([0, 0]), popularity_shares(np.array([7]))
    ).weights.tolist() == [1]


def test_a_known_row_folds_in_where_it_lies() -> None:
    """Exact for a symmetric decomposition: the row's own entries as weights give back the row's vector."""
    random = np.random.default_rng(0)
    basis = np.linalg.qr(random.standard_normal((30, 4)))[0]
    matrix = basis @ np.diag([9.0, 5.0, 3.0, 1.0]) @ basis.T
    vectors = torch.from_numpy((basis * np.sqrt([9.0, 5.0, 3.0, 1.0])).astype(np.float32))
    folded = torch.from_numpy(matrix.astype(np.float32)) @ vectors @ inverse_second_moment(vectors)
    torch.testing.assert_close(folded, vectors, atol=1e-4, rtol=1e-3)


def test_new_items_from_content_from_company_or_both() -> None:
    known = blocks([[3, 0], [0, 5], [0, 4]], [[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    content = torch.tensor([[0.0, 7.0], [0.0, 0.0], [7.0, 0.0]])
    company = [Companions(*pair) for pair in (seen(), seen(1, 2, 2), seen(1))]
    first, second, third = known.of_new({"content": content}, company)
    assert first[:2].tolist() == [0, 2]
    assert first[2:].norm() == pytest.approx(1)
    assert second[:2].tolist() == [0, 2]
    torch.testing.assert_close(second[2:], torch.tensor([0.0, 1.0, 2.0]) / 5**0.5)
    assert third.tolist() == [2, 0, 0, 1, 0]
    with pytest.raises(ModelConfigError, match="have no .'text'"):
        known.of_new({"text": content}, company)
    with pytest.raises(ModelConfigError, match="finite numbers, .3, 2., are needed"):
        known.of_new({"content": content[:, :1]}, company)


def test_vectors_survive_their_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    text = FittedText.fit("hashed_ngrams", ["red apple", "oil"], 2)
    vectors = ItemVectors.join([("text", 1.0, text.encode(["red apple", "oil"]))], text)
    write_item_vectors(vectors, tmp_path / "vectors.safetensors")
    found = read_item_vectors(tmp_path / "vectors.safetensors", 2)
    torch.testing.assert_close(found.vectors_RV.float(), vectors.vectors_RV, atol=1e-3, rtol=1e-3)
    assert found.blocks == vectors.blocks
    assert found.text is not None
    assert torch.equal(found.text.encode(["apple"]), text.encode(["apple"]))


def test_principal_axes_keep_distances_and_order_importance() -> None:
    vectors = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [1, 9, 3, 2]
    )
    turned = vectors @ principal_axes(vectors)
    torch.testing.assert_close(turned @ turned.T, vectors @ vectors.T, atol=1e-3, rtol=1e-4)
    energy: list[Any] = turned.square().sum(0).tolist()
    assert energy == sorted(energy, reverse=True)
