"""A bundle on disk with random weights, of the sizes that the bench is about: what real nodes are started with."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bench.recommend.world import Sizes, make_catalogue, make_network
from model.bundle import Bundle, Trained, load_bundle, save_bundle
from model.catalogue import Catalogue
from model.tokenizer.item_vectors import CONTENT, ItemVectors
from model.tokenizer.residual_kmeans import ResidualKMeans
from model.tokenizer.tokenizer import TokenizerConfig
from state.segments import HistoryConfig

_VECTOR_WIDTH = 64


def write_bundle(sizes: Sizes, num_items: int, path: Path) -> Bundle:
    """One item per SID, item ids from 1 on; item vectors and codebooks are random and fit to nothing."""
    random = np.random.default_rng(0)
    sids = make_catalogue(num_items, sizes.num_levels, sizes.codebook_size)
    columns: dict[str, npt.NDArray[Any]] = {
        "item_ids": 1 + random.permutation(num_items).astype(np.uint64),
        "author_ids": random.integers(0, 5_000, num_items).astype(np.uint64),
        "tags": random.integers(0, 300, num_items).astype(np.uint32),
        "durations_ms": np.zeros(num_items, np.uint32),
        "counts": sids.counts,
        "sids": sids.trie.codes_of(torch.arange(num_items)).numpy(),
    }
    catalogue = Catalogue(columns, [f"the title of item {n}" for n in range(num_items)])
    torch.manual_seed(0)
    codebooks = [torch.randn(sizes.codebook_size, _VECTOR_WIDTH) for _ in range(sizes.num_levels)]
    trained = Trained(
        network=make_network(sizes),
        history=HistoryConfig(),
        tokenizer=ResidualKMeans(codebooks),
        tokenizer_config=TokenizerConfig(codebook_sizes=(sizes.codebook_size,) * sizes.num_levels),
        item_vectors=ItemVectors.join([(CONTENT, 1.0, torch.randn(num_items, _VECTOR_WIDTH))]),
        catalogue=catalogue,
        training_report={},
    )
    save_bundle(trained, path)
    return load_bundle(path)
