"""Engines run the fused decoder's step; the plain one is PyTorch itself, and the twin of any other."""

from typing import Protocol

import torch
from torch import Tensor

from model.engine_config import Precision
from model.fused_decoder import FusedDecoder, Memory

HOST = torch.device("cpu")
DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Engine(Protocol):
    """Runs one step of decoding. Not thread-safe: one thread generates."""

    name: str
    precision: Precision
    """Of its matrix products, and of the keys and values that it takes and gives."""
    device: torch.device
    """Where it computes: a context's memory is kept there."""

    def step(
        self, x_BWH: Tensor, own: Tensor, mask_P: Tensor, memory: Memory
    ) -> tuple[Tensor, Tensor]:
        """As FusedDecoder.forward."""
        ...


class TorchEngine:
    """The step as it stands, here or on a GPU."""

    def __init__(
        self, fused: FusedDecoder, precision: Precision = "fp32", device: torch.device = HOST
    ) -> None:
        """In bf16 and on a GPU weights are copied once; codes and their embeddings at every step."""
        self.name = f"torch {precision}" if device == HOST else f"torch {device} {precision}"
        self.precision, self.device = precision, device
        self._dtype = DTYPES[precision]
        is_there = precision == "fp32" and device == HOST
        self._fused = fused if is_there else fused.copied_to(self._dtype, device)

    def step(
        self, x_BWH: Tensor, own: Tensor, mask_P: Tensor, memory: Memory
    ) -> tuple[Tensor, Tensor]:
        """As FusedDecoder.forward; states come back, the codes' keys and values stay where it computes."""
        given = (x_BWH, own, mask_P, *memory.tensors)
        states, own_new = self._fused(*(one.to(self.device, self._dtype) for one in given))
        return to_host(states.float()), own_new


def to_host(tensor: Tensor) -> Tensor:
    """The tensor in this process's own memory; waits for what computes it."""
    return tensor.cpu()
