"""The loss of items scored beside their codes: a softmax over the catalogue for every interaction, in little memory.

Loss and gradients of a block of rows are computed while its logits are in the cache; only the gradients are kept. That is half
the time of autograd over the whole matrix of logits, of which a step would hold three copies.

Shapes: B contexts, R recent interactions, M rows, N items, H width.
"""

from typing import Any

import torch
from torch import Tensor

from model.layers import Segment
from model.network import Network
from model.training.batches import Batch

_ROWS_AT_ONCE = 128


def next_item_loss(network: Network, recent: Segment, batch: Batch) -> Tensor:
    """Mean -log P_next of what followed the recent interactions; 0 where the network scores no items, or nothing followed."""
    counts_BR = batch.next_items >= 0
    rows = batch.catalogue_rows
    if network.next_item is None or rows is None or not counts_BR.any():
        return recent.vectors.new_zeros((), dtype=torch.float32)
    query_MH = network.next_item.query(recent.vectors[counts_BR])
    vectors_NH = network.features.item_vectors(rows.rows)
    return catalogue_cross_entropy(
        query_MH, vectors_NH, rows.log_shares, batch.next_items[counts_BR]
    )


def catalogue_cross_entropy(
    query_MH: Tensor, vectors_NH: Tensor, log_shares_N: Tensor, targets_M: Tensor
) -> Tensor:
    """Mean over rows of -log softmax(query . vector + log share) of the targets; under autocast, products are in its type."""
    loss: Tensor = _CatalogueCrossEntropy.apply(query_MH, vectors_NH, log_shares_N, targets_M)  # type: ignore[no-untyped-call]
    return loss


class _CatalogueCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query_MH: Tensor, vectors_NH: Tensor, log_shares_N: Tensor, targets_M: Tensor
    ) -> Tensor:
        device = query_MH.device.type
        low = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if low else vectors_NH.dtype
        with torch.autocast(device, enabled=False):
            query, vectors = query_MH.to(dtype), vectors_NH.to(dtype)
            total = vectors_NH.new_zeros(())
            of_query, of_vectors = torch.empty_like(query), torch.zeros_like(vectors_NH)
            for start in range(0, len(query), _ROWS_AT_ONCE):
                part = slice(start, start + _ROWS_AT_ONCE)
                targets_C1 = targets_M[part, None]
                logits_CN = (query[part] @ vectors.T).to(vectors_NH.dtype).add_(log_shares_N)
                most_C1 = logits_CN.amax(1, keepdim=True)
                powers_CN = logits_CN.sub_(most_C1)
                at_target_C1 = powers_CN.gather(1, targets_C1)
                powers_CN.exp_()
                sums_C1 = powers_CN.sum(1, keepdim=True)
                total += (sums_C1.log() - at_target_C1).sum()
                slopes_CN = powers_CN.div_(sums_C1)
                slopes_CN.scatter_add_(1, targets_C1, -torch.ones_like(sums_C1))
                slopes = slopes_CN.to(dtype)
                of_query[part] = slopes @ vectors
                of_vectors += slopes.T @ query[part]
        ctx.save_for_backward(of_query.to(query_MH.dtype), of_vectors)
        return total / len(query)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        of_query, of_vectors = ctx.saved_tensors
        scale = gradients[0] / len(of_query)
        return of_query * scale, of_vectors * scale, None, None
