"""A bundle of random weights and a catalogue of any size, a user, and items that are new."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bench.ingest.log import make_log
from model.bundle import Bundle
from model.catalogue import Catalogue, CatalogueItem
from model.item_knowledge import NewItem
from model.item_placement import Offer
from model.network import Network, NetworkConfig
from model.tokenizer.item_vectors import CONTENT, COOCCURRENCE, ItemVectors
from model.tokenizer.residual_kmeans import ResidualKMeans
from model.tokenizer.tokenizer import TokenizerConfig
from model.trie import Trie
from state.segments import HistoryConfig
from state.user_state import UserMeta, UserState

WIDTH = 64
"""Of each of the two blocks of an item vector."""
COMPANIONS = 20


def make_bundle(num_items: int) -> Bundle:
    """Default sizes; codes are those of the tokenizer, whose centroids are random items."""
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    config, history = TokenizerConfig(), HistoryConfig()
    network = Network(NetworkConfig(), history, config.num_levels, config.codebook_size)
    parts = [(name, 1.0, torch.randn(num_items, WIDTH)) for name in (COOCCURRENCE, CONTENT)]
    vectors = ItemVectors.join(parts)
    sample = vectors.vectors_RV[torch.randperm(num_items)[: 256 * config.num_levels]]
    tokenizer = ResidualKMeans([part * 0.7**n for n, part in enumerate(torch.split(sample, 256))])
    columns: dict[str, npt.NDArray[Any]] = {
        "item_ids": np.arange(1, num_items + 1, dtype=np.uint64),
        "author_ids": random.integers(0, 5_000, num_items).astype(np.uint64),
        "tags": random.integers(0, 300, num_items).astype(np.uint32),
        "durations_ms": np.zeros(num_items, np.uint32),
        "counts": np.minimum(random.zipf(1.5, num_items), 10**6).astype(np.int64),
        "sids": tokenizer.assign(vectors.vectors_RV).numpy(),
    }
    catalogue = Catalogue(columns, [f"the title of item {n}" for n in range(num_items)])
    return Bundle(
        version="bench",
        path=Path(),
        network=network.eval().requires_grad_(False),
        history=history,
        tokenizer=tokenizer,
        tokenizer_config=config,
        item_vectors=vectors.rows(catalogue.item_ids.astype(np.int64) - 1),
        catalogue=catalogue,
        trie=Trie(catalogue.sids_SD, catalogue.sid_counts_S),
        training_report={},
    )


def make_user(history_len: int = 300) -> UserState:
    """A user without a summary."""
    rows = make_log(history_len, 1).rows
    return UserState("someone", UserMeta(length=history_len), rows, None)


def make_offers(bundle: Bundle, count: int, first_id: int) -> dict[int, Offer]:
    """New items: half of them with content and company, half with company alone, whose content is guessed."""
    random = np.random.default_rng(first_id)
    known = bundle.catalogue.item_ids
    return {
        item_id: Offer(
            new=NewItem(
                item=CatalogueItem(item_id, title=f"the title of item {item_id}"),
                content=random.standard_normal(WIDTH).astype(np.float32) if item_id % 2 else None,
                seen_with=random.choice(known, COMPANIONS).tolist(),
            )
        )
        for item_id in range(first_id, first_id + count)
    }
