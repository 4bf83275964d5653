"""What a tokenizer is: vectors in, one code per level out."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from model.errors import ModelConfigError


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """How items become codes. Raises ModelConfigError for impossible sizes."""

    num_levels: int = 3
    codebook_size: int = 256
    num_iterations: int = 12
    """Lloyd iterations per level."""
    window: int = 10
    """Neighbours on either side that count as co-occurring, in a user's history."""
    vector_width: int = 64

    def __post_init__(self) -> None:
        """Every size is at least one."""
        for name, value in vars(self).items():
            if value < 1:
                raise ModelConfigError(f"{name} is {value}; it must be at least 1")


class Tokenizer(Protocol):
    """Fitted once; assigns codes to new items without refitting. Shapes: N items, D levels, K codes, V vector width."""

    @property
    def codebooks(self) -> Tensor:
        """[D, K, V]: what is stored in a bundle."""
        ...

    def assign(self, vectors_NV: Tensor) -> Tensor:
        """[N, D] int64 codes."""
        ...
