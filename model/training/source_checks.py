"""Settings that ask for what the files do not hold: an error where that cannot be meant, else a warning."""

from pathlib import Path

from model.catalogue import ItemTable
from model.errors import CatalogueError
from model.training.config import TrainConfig


def check_sources(items: ItemTable, items_path: Path | None, config: TrainConfig) -> list[str]:
    """Warnings. Raises CatalogueError for titles that count and are not there."""
    settings, num_items = config.items, len(items.item_ids)
    if settings.text_weight and items_path is None:
        raise CatalogueError(
            f"train.items.text_weight is {settings.text_weight:g}, but there are no titles: give an items file (--items)"
        )
    if settings.text_weight and not any(items.titles):
        raise CatalogueError(
            f"{items_path}: none of the {num_items} items of the log has a title in it; "
            f"train.items.text_weight is {settings.text_weight:g}"
        )
    warnings = []
    if settings.vectors is not None and not settings.content_weight:
        warnings.append(
            f"train.items.vectors, {settings.vectors}, is not used: content_weight is 0"
        )
    if config.tokenizer.codebook_size > num_items:
        warnings.append(
            f"train.tokenizer.codebook_sizes is {config.tokenizer.codebook_sizes}: more codes than there are items, {num_items}"
        )
    return warnings
