"""Memory that a run asked for and did not get."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from model.errors import TrainingError
from model.training.config import TrainConfig

_REFUSED = re.compile(r"(?:can't|cannot|not enough) (?:allocate )?memory|tried to allocate", re.I)


@contextmanager
def memory_errors(config: TrainConfig) -> Iterator[None]:
    """Raises TrainingError, naming what memory depends on, where numpy or torch get none."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _is_refusal(error):
            raise
        features, sizes = config.network.features, config.tokenizer.codebook_sizes
        raise TrainingError(
            f"memory does not suffice ({str(error).splitlines()[0]}); smaller ones would do of train.network: "
            f"features.item_buckets ({features.item_buckets}), layer.width ({config.network.layer.width}); train: "
            f"tokenizer.codebook_sizes {sizes}, items.cooccurrence_width ({config.items.cooccurrence_width}), "
            f"batch_size ({config.batch_size}); or gradient_checkpointing = true"
        ) from error


def _is_refusal(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or bool(_REFUSED.search(str(error)))
