"""Texts to vectors: what an encoder is, and one that needs no download.

Shapes: N texts, W vector width, F hashed features.
"""

import importlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import torch
import xxhash
from torch import Tensor
from torch.nn import functional

from model.errors import ModelConfigError

_NUM_FEATURES = 16_384
_GRAM = 3
_SVD_OVERSAMPLING = 16


class TextEncoder(Protocol):
    """Fitted on the catalogue's texts; encodes new ones without refitting."""

    @classmethod
    def fit(cls, texts: Sequence[str], width: int) -> Self:
        """An encoder for texts like these."""
        ...

    def encode(self, texts: Sequence[str]) -> Tensor:
        """[N, W] float32; zeros for a text of which nothing is known."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """What a bundle stores."""
        ...

    @classmethod
    def restore(cls, tensors: dict[str, Tensor]) -> Self:
        """The encoder that gave these `tensors`."""
        ...


@dataclass(frozen=True)
class FittedText:
    """A fitted encoder by its name; its module is imported when a text is encoded, not when a bundle is loaded."""

    name: str
    tensors: dict[str, Tensor]

    @classmethod
    def fit(cls, name: str, texts: Sequence[str], width: int) -> "FittedText":
        """Raises ModelConfigError for a name that means no encoder."""
        return cls(name, text_encoder_class(name).fit(texts, width).tensors())

    def encode(self, texts: Sequence[str]) -> Tensor:
        """[N, W]. Raises ModelConfigError when the encoder cannot be imported here."""
        return text_encoder_class(self.name).restore(self.tensors).encode(texts)


def text_encoder_class(name: str) -> type[TextEncoder]:
    """`hashed_ngrams`, or a class of an installed module as `module:Class`. Raises ModelConfigError."""
    if name == "hashed_ngrams":
        return HashedNgrams
    module, _, attribute = name.partition(":")
    try:
        found: type[TextEncoder] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ModelConfigError(
            f"text_encoder is {name!r}; it must be hashed_ngrams or module:Class that can be imported: {error}"
        ) from error
    return found


class HashedNgrams:
    """Latent semantic analysis over hashed words and letter trigrams: TF-IDF, then the leading singular directions."""

    def __init__(self, idf_F: Tensor, projection_FW: Tensor) -> None:
        """From fitted weights."""
        self._idf_F = idf_F
        self._projection_FW = projection_FW

    @classmethod
    def fit(cls, texts: Sequence[str], width: int) -> "HashedNgrams":
        """Uses torch's global random state."""
        distinct = sorted({text for text in texts if text.strip()})
        frequency_F = torch.zeros(_NUM_FEATURES)
        rows = [_features(text) for text in distinct]
        for row in rows:
            frequency_F[list(row)] += 1
        idf_F = ((1 + len(rows)) / (1 + frequency_F)).log() + 1
        projection_FW = torch.zeros(_NUM_FEATURES, width)
        rank = min(width + _SVD_OVERSAMPLING, len(rows))
        if rank:
            right = torch.svd_lowrank(_tf_idf(rows, idf_F), q=rank)[2][:, :width]
            projection_FW[:, : right.shape[1]] = right
        return cls(idf_F, projection_FW)

    def encode(self, texts: Sequence[str]) -> Tensor:
        """[N, W] of unit length; zeros for an empty text."""
        distinct = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        rows = [_features(text) for text in distinct]
        vectors = functional.normalize(_tf_idf(rows, self._idf_F) @ self._projection_FW, dim=1)
        return vectors[[distinct[text] for text in texts]]

    def tensors(self) -> dict[str, Tensor]:
        """Feature weights and projection."""
        return {"idf": self._idf_F, "projection": self._projection_FW}

    @classmethod
    def restore(cls, tensors: dict[str, Tensor]) -> "HashedNgrams":
        """The encoder that gave these `tensors`."""
        return cls(tensors["idf"], tensors["projection"])


def _features(text: str) -> dict[int, float]:
    """Hashed features and their damped counts."""
    counts = Counter(
        xxhash.xxh3_64_intdigest(gram.encode()) % _NUM_FEATURES for gram in _grams(text)
    )
    return {feature: 1 + math.log(count) for feature, count in counts.items()}


def _grams(text: str) -> Iterator[str]:
    for word in text.casefold().split():
        yield word
        padded = f"<{word}>"
        for start in range(len(padded) - _GRAM + 1):
            yield padded[start : start + _GRAM]


def _tf_idf(rows: Sequence[dict[int, float]], idf_F: Tensor) -> Tensor:
    """[N, F], sparse, rows of unit length."""
    places = [(row, feature) for row, features in enumerate(rows) for feature in features]
    values = torch.tensor([value for features in rows for value in features.values()])
    indices = torch.tensor(places, dtype=torch.int64).reshape(-1, 2).T
    values = values.reshape(-1) * idf_F[indices[1]]
    norms = torch.zeros(len(rows)).index_add_(0, indices[0], values.square()).sqrt()
    return torch.sparse_coo_tensor(
        indices, values / norms[indices[0]], (len(rows), _NUM_FEATURES), check_invariants=False
    ).coalesce()
