"""Which tokenizer a configuration means: fitting one, and restoring one from a bundle's tensors."""

import torch
from torch import Tensor

from model.errors import ModelConfigError
from model.tokenizer.residual_kmeans import ResidualKMeans
from model.tokenizer.rq_vae import RqVae
from model.tokenizer.tokenizer import Tokenizer, TokenizerConfig


def fit_tokenizer(vectors_NV: Tensor, config: TokenizerConfig, seed: int) -> Tokenizer:
    """A tokenizer of the configured kind. Deterministic by seed and number of threads.

    Raises ModelConfigError when there is no item, or a vector is not finite.
    """
    if not len(vectors_NV) or not vectors_NV.isfinite().all():
        raise ModelConfigError(
            f"{len(vectors_NV)} item vectors: a tokenizer needs at least one, and finite numbers alone"
        )
    kind = RqVae if config.kind == "rq_vae" else ResidualKMeans
    return kind.fit(vectors_NV, config, torch.Generator().manual_seed(seed))


def restore_tokenizer(config: TokenizerConfig, tensors: dict[str, Tensor]) -> Tokenizer:
    """The fitted tokenizer that gave these tensors. Raises KeyError or RuntimeError when they do not fit `config`."""
    if config.kind == "rq_vae":
        return RqVae.restore(config, tensors)
    tokenizer = ResidualKMeans.restore(tensors)
    sizes = tuple(len(codebook) for codebook in tokenizer.codebooks)
    if sizes != config.codebook_sizes:
        raise RuntimeError(
            f"codebooks have {sizes} codes, the configuration says {config.codebook_sizes}"
        )
    return tokenizer
