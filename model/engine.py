"""Engines run the fused decoder's step; the plain one is PyTorch itself, and the twin of any other."""

from typing import Protocol

import torch
from torch import Tensor

from model.fused_decoder import FusedDecoder, Memory


class Engine(Protocol):
    """Runs one step of decoding. Not thread-safe: one thread generates."""

    name: str

    def step(
        self, x_BWH: Tensor, own: Tensor, mask_P: Tensor, memory: Memory
    ) -> tuple[Tensor, Tensor]:
        """As FusedDecoder.forward."""
        ...


class TorchEngine:
    """The step as it stands, in float32 or bfloat16."""

    def __init__(self, fused: FusedDecoder, dtype: torch.dtype = torch.float32) -> None:
        """In bfloat16 weights are copied once, inputs at every step."""
        self.name = f"torch {str(dtype).removeprefix('torch.')}"
        self._dtype = dtype
        self._fused = fused if dtype == torch.float32 else fused.copied_to(dtype)

    def step(
        self, x_BWH: Tensor, own: Tensor, mask_P: Tensor, memory: Memory
    ) -> tuple[Tensor, Tensor]:
        """As FusedDecoder.forward."""
        inputs = [tensor.to(self._dtype) for tensor in (x_BWH, own, mask_P, *memory.tensors)]
        states, own_new = self._fused(*inputs)
        return states.float(), own_new.float()
