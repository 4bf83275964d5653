"""The network before its first step: tables and codebooks from item vectors."""

from torch import Tensor
from torch.nn import functional

from model.catalogue import ItemTable
from model.network import Network
from model.tokenizer.item_vectors import principal_axes
from model.tokenizer.residual_codes import mean_residuals
from model.training.config import TrainConfig


def initial_network(
    config: TrainConfig, items: ItemTable, vectors: Tensor, codes: Tensor
) -> Network:
    """Item table and codebooks start in the space of the item vectors: an item is near the sum of its codes."""
    width, codebook_size = config.network.layer.width, config.tokenizer.codebook_size
    network = Network(config.network, config.history, config.tokenizer.num_levels, codebook_size)
    leading = vectors @ principal_axes(vectors)[:, :width]
    network.features.set_item_vectors(items.item_ids, _fit_width(leading, width), items.counts)
    network.set_codebooks(_fit_width(mean_residuals(leading, codes, codebook_size), width))
    return network


def _fit_width(vectors: Tensor, width: int) -> Tensor:
    """Padded with zeros."""
    return functional.pad(vectors, (0, width - vectors.shape[-1]))
