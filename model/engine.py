"""Engines run the fused decoder's step; the plain one is PyTorch itself, and the twin of any other."""

from typing import Protocol

import torch
from torch import Tensor

from model.engine_config import Precision
from model.fused_decoder import FusedDecoder, Memory

DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Engine(Protocol):
    """Runs one step of decoding. Not thread-safe: one thread generates."""

    name: str
    precision: Precision
    """Of its matrix products."""

    def step(
        self, x_BWH: Tensor, own: Tensor, mask_P: Tensor, memory: Memory
    ) -> tuple[Tensor, Tensor]:
        """As FusedDecoder.forward."""
        ...


class TorchEngine:
    """The step as it stands."""

    def __init__(self, fused: FusedDecoder, precision: Precision = "fp32") -> None:
        """In bf16 weights are copied once, and inputs at every step."""
        self.name = f"torch {precision}"
        self.precision = precision
        self._dtype = DTYPES[precision]
        self._fused = fused if precision == "fp32" else fused.copied_to(self._dtype)

    def step(
        self, x_BWH: Tensor, own: Tensor, mask_P: Tensor, memory: Memory
    ) -> tuple[Tensor, Tensor]:
        """As FusedDecoder.forward."""
        inputs = [tensor.to(self._dtype) for tensor in (x_BWH, own, mask_P, *memory.tensors)]
        states, own_new = self._fused(*inputs)
        return states.float(), own_new.float()
