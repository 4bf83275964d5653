"""The decoder's step compiled by OpenVINO for fixed sizes. The only file that knows OpenVINO.

Shapes: B contexts, W beams, P codes of a sequence from BOS on, H width, L blocks, A heads, C = H / A.
"""

import warnings
from typing import Any

import numpy as np
import openvino as ov
import torch
from torch import Tensor

from model.engine import TorchEngine
from model.engine_config import Precision
from model.fused_decoder import FusedDecoder, Memory

_BATCHES = (1, 2, 4, 8)
"""Batches are filled up to the next of these; larger ones go through in parts."""


class OpenVinoEngine:
    """Compiled once per batch size for one number of beams; anything else goes through PyTorch.

    Weights are packed per compiled size, so that each costs about their size in memory.
    """

    def __init__(
        self, fused: FusedDecoder, beam_width: int, precision: Precision, num_threads: int
    ) -> None:
        """Nothing is compiled before the first step of a size; see `prepare`."""
        self.name = f"openvino {precision}"
        self._fused = fused
        self._plain = TorchEngine(fused)
        self._beam_width = beam_width
        self._settings: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": {"fp32": "f32", "bf16": "bf16"}[precision],
            "INFERENCE_NUM_THREADS": num_threads,
            "PERFORMANCE_HINT": "LATENCY",
        }
        self._core = ov.Core()
        self._model: ov.Model | None = None
        self._requests: dict[tuple[int, ...], ov.InferRequest] = {}

    @staticmethod
    def has_bf16() -> bool:
        """Whether the processor multiplies bfloat16."""
        return "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")

    def step(
        self, x_BWH: Tensor, own: Tensor, mask_P: Tensor, memory: Memory
    ) -> tuple[Tensor, Tensor]:
        """As FusedDecoder.forward."""
        batch, width, _ = x_BWH.shape
        if width != self._beam_width:
            return self._plain.step(x_BWH, own, mask_P, memory)
        most = _BATCHES[-1]
        if batch > most:
            parts = [slice(i, i + most) for i in range(0, batch, most)]
            done = [
                self.step(x_BWH[part], own[:, part], mask_P, memory.part(part)) for part in parts
            ]
            return torch.cat([states for states, _ in done]), torch.cat([k for _, k in done], 1)
        size = next(size for size in _BATCHES if size >= batch)
        inputs = [_filled_up(x_BWH, size, 0), _filled_up(own, size, 1), mask_P]
        inputs += [_filled_up(tensor, size, 0) for tensor in memory.tensors]
        request = self._request(inputs)
        arrays = [
            tensor.contiguous().numpy() for tensor in inputs
        ]  # OpenVINO borrows them until it is done
        for place, array in enumerate(arrays):
            request.set_input_tensor(place, ov.Tensor(array, shared_memory=True))
        request.infer()
        states, key_value = (
            torch.from_numpy(np.array(request.get_output_tensor(i).data)) for i in range(2)
        )
        return states[:batch], key_value[:, :batch]

    def _request(self, inputs: list[Tensor]) -> ov.InferRequest:
        """Of the model compiled for these sizes."""
        key = tuple(inputs[0].shape)
        if key not in self._requests:
            if self._model is None:
                self._model = _converted(self._fused, inputs)
            shapes = {place: list(tensor.shape) for place, tensor in enumerate(inputs)}
            self._model.reshape(shapes)
            compiled = self._core.compile_model(self._model, "CPU", self._settings)
            self._requests[key] = compiled.create_infer_request()
        return self._requests[key]


def _converted(fused: FusedDecoder, inputs: list[Tensor]) -> ov.Model:
    """For any number of contexts; the other sizes are those of `inputs`."""
    batch_dims = [0, 1, None, *[0] * (len(inputs) - 3)]
    examples = [
        tensor.clone() if dim is None else torch.cat([tensor.narrow(dim, 0, 1)] * 2, dim)
        for tensor, dim in zip(inputs, batch_dims, strict=True)
    ]
    batch = torch.export.Dim("batch", min=2, max=_BATCHES[-1])
    shapes = [None if dim is None else {dim: batch} for dim in batch_dims]
    # torch.export and OpenVINO's reader of it call parts of PyTorch that warn of their age.
    with warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
        warnings.simplefilter("ignore")
        copies = tuple(torch.from_numpy(np.array(example.numpy())) for example in examples)
        exported = torch.export.export(
            fused, copies, dynamic_shapes=(*shapes[:3], tuple(shapes[3:]))
        )
        return ov.convert_model(exported)


def _filled_up(tensor: Tensor, size: int, dim: int) -> Tensor:
    """With copies of the first entry along `dim`, up to `size` of them."""
    missing = size - tensor.shape[dim]
    if not missing:
        return tensor
    first = tensor.narrow(dim, 0, 1)
    return torch.cat([tensor, first.expand(*_repeated(tensor, dim, missing))], dim)


def _repeated(tensor: Tensor, dim: int, times: int) -> list[int]:
    shape = [-1] * tensor.dim()
    shape[dim] = times
    return shape
