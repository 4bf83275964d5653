"""What a run knows of items before it trains: which there are, their vectors, and the codes that become their SIDs."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from model.catalogue import Catalogue, ItemTable, collect_items
from model.tokenizer.fitting import fit_tokenizer
from model.tokenizer.health import tokenizer_health
from model.tokenizer.item_vectors import ItemVectors
from model.tokenizer.tokenizer import Tokenizer
from model.training.config import TrainConfig
from model.training.histories import Histories
from model.training.item_blocks import build_item_vectors
from model.training.source_checks import check_sources
from state.event_log import EventLog


@dataclasses.dataclass(frozen=True)
class PreparedItems:
    """In the order of `table`, but for the catalogue, which is in its own."""

    table: ItemTable
    vectors: ItemVectors
    tokenizer: Tokenizer
    codes: torch.Tensor
    """One row of codes per item."""
    catalogue: Catalogue

    def catalogue_vectors(self) -> ItemVectors:
        """In the order of the catalogue."""
        return self.vectors.rows(np.searchsorted(self.table.item_ids, self.catalogue.item_ids))

    def health(self, config: TrainConfig) -> dict[str, object]:
        """Of the tokenizer, for the report."""
        sizes = config.tokenizer.codebook_sizes
        codes = self.codes.numpy()
        return dataclasses.asdict(
            tokenizer_health(self.tokenizer, self.vectors.vectors_RV, codes, sizes)
        )


def prepare_items(
    events: EventLog,
    histories: Histories,
    items_path: Path | None,
    config: TrainConfig,
    warn: Callable[[str], None],
    advance: Callable[[], None],
) -> PreparedItems:
    """`advance` is called after each of three steps. Uses torch's global random state. Raises ModelError."""
    table = collect_items(events.rows, config.min_item_count, items_path)
    for warning in check_sources(table, items_path, config):
        warn(warning)
    advance()
    vectors = build_item_vectors(histories, table, config)
    advance()
    tokenizer = fit_tokenizer(vectors.vectors_RV, config.tokenizer, config.seed)
    codes = tokenizer.assign(vectors.vectors_RV, config.tokenizer.bounds)
    catalogue = table.with_sids(codes.numpy())
    advance()
    return PreparedItems(table, vectors, tokenizer, codes, catalogue)
