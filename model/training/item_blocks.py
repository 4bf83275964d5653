"""The blocks of item vectors that `[train.items]` asks for, from histories, a file of vectors and titles."""

import numpy as np
from torch import Tensor

from model.catalogue import ItemTable
from model.tokenizer.content import read_content
from model.tokenizer.cooccurrence import cooccurrence_vectors
from model.tokenizer.item_vectors import CONTENT, COOCCURRENCE, TEXT, ItemVectors
from model.tokenizer.text import FittedText
from model.training.config import TrainConfig
from model.training.histories import Histories


def build_item_vectors(histories: Histories, items: ItemTable, config: TrainConfig) -> ItemVectors:
    """Vectors in the order of `items`. Uses torch's global random state.

    Raises CatalogueError for a file of vectors that cannot be used, ModelConfigError for an unknown text encoder.
    """
    settings, parts, text = config.items, [], None
    if settings.cooccurrence_weight:
        behaviour = _behaviour_vectors(histories, items, config)
        parts.append((COOCCURRENCE, settings.cooccurrence_weight, behaviour))
    if settings.vectors is not None and settings.content_weight:
        content = read_content(settings.vectors, items.item_ids)
        parts.append((CONTENT, settings.content_weight, content))
    if settings.text_weight:
        text = FittedText.fit(settings.text_encoder, items.titles, settings.text_width)
        parts.append((TEXT, settings.text_weight, text.encode(items.titles)))
    return ItemVectors.join(parts, text)


def _behaviour_vectors(histories: Histories, items: ItemTable, config: TrainConfig) -> Tensor:
    """From training interactions alone. Order within a basket carries no meaning, so it is drawn anew."""
    random = np.random.default_rng(config.seed)
    trainable = np.flatnonzero(np.arange(len(histories.rows)) < histories.train_end)
    order = np.lexsort((random.random(len(trainable)), histories.basket_end[trainable]))
    positions = trainable[order]
    ids = histories.rows["item_id"][positions]
    places = np.searchsorted(items.item_ids, ids).clip(max=len(items.item_ids) - 1)
    return cooccurrence_vectors(
        histories.users[positions],
        np.where(items.item_ids[places] == ids, places, -1),
        len(items.item_ids),
        config.items.window,
        config.items.cooccurrence_width,
    )
