"""Cross-entropy over all items, in chunks: logits of a chunk become its gradients at once and are not kept."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from model.training.histories import Index

CHUNK_ROWS = 128


class _FullSoftmax(Function):
    """Shapes: R rows, N items, W width, T targets."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_RW: Tensor,
        table_NW: Tensor,
        bias_N: Tensor,
        targets: tuple[Index, Tensor, Tensor],
    ) -> Tensor:
        rows, items_T, weights_T = targets
        rows_T = torch.as_tensor(rows)
        row_weights = torch.zeros(len(hidden_RW)).index_add_(0, rows_T, weights_T)
        grad_hidden, grad_table = torch.empty_like(hidden_RW), torch.zeros(table_NW.shape)
        grad_bias, loss = torch.zeros_like(bias_N), torch.zeros(())
        for first in range(0, len(hidden_RW), CHUNK_ROWS):
            chunk = hidden_RW[first : first + CHUNK_ROWS]
            low, high = np.searchsorted(rows, (first, first + len(chunk))).tolist()
            places = (rows_T[low:high] - first, items_T[low:high])
            weights = weights_T[low:high]
            logits = (chunk @ table_NW.T).float().add_(bias_N)
            loss -= weights @ logits[places]
            largest = logits.amax(1, keepdim=True)
            total = logits.sub_(largest).exp_().sum(1, keepdim=True)
            share = row_weights[first : first + len(chunk), None]
            loss += (share * (total.log() + largest)).sum()
            grads = logits.mul_(share / total)
            grads.index_put_(places, -weights, accumulate=True)
            grad_bias += grads.sum(0)
            grads = grads.to(table_NW.dtype)
            grad_hidden[first : first + len(chunk)] = grads @ table_NW
            grad_table += grads.T @ chunk
        ctx.save_for_backward(grad_hidden, grad_table.to(table_NW.dtype), grad_bias)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        hidden, table, bias = ctx.saved_tensors
        (grad,) = grads
        return hidden * grad, table * grad, bias * grad, None


def full_softmax_loss(
    hidden_RW: Tensor, table_NW: Tensor, bias_N: Tensor, targets: tuple[Index, Tensor, Tensor]
) -> Tensor:
    """Weighted sum of -log softmax(hidden @ table.T + bias) at targets (rows ascending, items, weights).

    Products are made in the type of `hidden_RW`, sums in float32.
    """
    table_NW = table_NW.to(hidden_RW.dtype)
    loss: Tensor = _FullSoftmax.apply(hidden_RW, table_NW, bias_N, targets)  # type: ignore[no-untyped-call]
    return loss
