"""What a tokenizer is: vectors in, one code per level out. Its settings are `[train.tokenizer]`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from model.errors import ModelConfigError

MAX_LEVELS = 5


@dataclass(frozen=True)
class Bounds:
    """Limits on how many items share codes; an item whose nearest code is full gets its nearest one that is not."""

    balance: float = 0.0
    """No code of a level holds more than this many times the mean of its level; 0: no limit."""
    max_bucket: int = 0
    """No SID holds more items, while its prefix has room under other last codes; 0: no limit. Wins over `balance`."""

    def __post_init__(self) -> None:
        """A limit below the mean cannot be kept."""
        if self.balance != 0 and self.balance < 1:
            raise ModelConfigError(f"balance is {self.balance}; it must be 0 (off) or at least 1")
        if self.max_bucket < 0:
            raise ModelConfigError(f"max_bucket is {self.max_bucket}; it must be 0 (off) or more")


UNBOUNDED = Bounds()


@dataclass(frozen=True, kw_only=True)
class KMeansConfig:
    """How centroids are found."""

    num_iterations: int = 12
    """Lloyd iterations per level, at most."""
    points_per_code: int = 256
    """Larger catalogues are clustered on a sample of so many items per code; then all items move the centroids once."""

    def __post_init__(self) -> None:
        """Both are at least one."""
        if self.num_iterations < 1 or self.points_per_code < 1:
            raise ModelConfigError(
                f"num_iterations is {self.num_iterations} and points_per_code {self.points_per_code}: at least 1 each"
            )


@dataclass(frozen=True, kw_only=True)
class RqVaeConfig:
    """Layers and training of the RQ-VAE."""

    hidden_widths: tuple[int, ...] = (256, 128)
    """Of the encoder; the decoder has them in reverse."""
    latent_width: int = 32
    num_steps: int = 3000
    batch_size: int = 1024
    learning_rate: float = 1e-3
    commitment_weight: float = 0.25
    gradient: Literal["straight_through", "rotation"] = "straight_through"
    """How the decoder's gradient passes the quantisation."""
    reset_every: int = 100
    """Steps after which codes that nobody used are moved onto items of the batch."""

    def __post_init__(self) -> None:
        """Sizes are at least one, rates above zero."""
        sizes = (*self.hidden_widths, self.latent_width, self.num_steps, self.batch_size, self.reset_every)  # fmt: skip
        if min(sizes) < 1:
            raise ModelConfigError(
                f"hidden_widths is {self.hidden_widths}, latent_width {self.latent_width}, num_steps {self.num_steps}, "
                f"batch_size {self.batch_size}, reset_every {self.reset_every}: at least 1 each"
            )
        if self.learning_rate <= 0 or self.commitment_weight < 0:
            raise ModelConfigError(
                f"learning_rate is {self.learning_rate}: above 0; "
                f"commitment_weight is {self.commitment_weight}: at least 0"
            )


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """How items become codes. Raises ModelConfigError for impossible sizes."""

    kind: Literal["residual_kmeans", "rq_vae"] = "residual_kmeans"
    codebook_sizes: tuple[int, ...] = (256, 256, 256)
    """Codes of each level."""
    balance: float = 0.0
    max_bucket: int = 0
    kmeans: KMeansConfig = field(default_factory=KMeansConfig)
    rq_vae: RqVaeConfig = field(default_factory=RqVaeConfig)

    def __post_init__(self) -> None:
        """One to five levels of at least one code."""
        if not 1 <= self.num_levels <= MAX_LEVELS:
            raise ModelConfigError(
                f"codebook_sizes has {self.num_levels} levels; 1 to {MAX_LEVELS} are possible"
            )
        if min(self.codebook_sizes) < 1:
            raise ModelConfigError(
                f"codebook_sizes is {self.codebook_sizes}; each must be at least 1"
            )
        _ = self.bounds

    @property
    def num_levels(self) -> int:
        """Codes per SID."""
        return len(self.codebook_sizes)

    @property
    def codebook_size(self) -> int:
        """The largest level's; the network pads the others to it."""
        return max(self.codebook_sizes)

    @property
    def bounds(self) -> Bounds:
        """What the catalogue's codes obey."""
        return Bounds(self.balance, self.max_bucket)


class Tokenizer(Protocol):
    """Fitted once; assigns codes to new items without refitting. Shapes: N items, D levels, V vector width."""

    def assign(self, vectors_NV: Tensor, bounds: Bounds = UNBOUNDED) -> Tensor:
        """[N, D] int64 codes; any finite vector is legal. `bounds` hold over these N items together."""
        ...

    def decode(self, codes_ND: Tensor) -> Tensor:
        """[N, V]: what the codes say of the vectors; fewer than all levels are legal."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """What a bundle stores; `model.tokenizer.fitting.restore_tokenizer` turns it back."""
        ...


def split(vectors: Tensor, size: int = 2048) -> Sequence[Tensor]:
    """Blocks of rows whose scores against a codebook fit into a processor's cache."""
    return torch.split(vectors, size)
