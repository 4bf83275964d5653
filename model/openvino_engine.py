"""The decoder's step compiled by OpenVINO for fixed sizes; model/openvino_graph.py builds what is compiled.

Shapes: B contexts, W beams, P codes of a sequence from BOS on, H width, L blocks, A heads, C = H / A.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openvino as ov
import torch
from torch import Tensor

from model.engine import TorchEngine
from model.engine_config import Precision
from model.fused_decoder import FusedDecoder, Memory
from model.openvino_graph import build_graph

_BATCHES = (1, 2, 4, 8)
"""Batches are filled up to the next of these; larger ones go through in parts."""
_WIDER = 4
"""How much wider the second of the two compiled numbers of beams is: what a search repeats with that found too little."""


class OpenVinoEngine:
    """Compiled once per size: batches of `_BATCHES`, beams of the usual number and of four times as many.

    What lies between is filled up, more beams go through PyTorch. Weights are packed per compiled size, so that each costs
    about their size in memory.
    """

    def __init__(
        self, fused: FusedDecoder, beam_width: int, precision: Precision, num_threads: int
    ) -> None:
        """Nothing is compiled before the first step of a size; see `prepare`."""
        self.name = f"openvino {precision}"
        self.precision = precision
        self._fused = fused
        self._plain = TorchEngine(fused)
        self._widths = (beam_width, _WIDER * beam_width)
        self._settings: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": {"fp32": "f32", "bf16": "bf16"}[precision],
            "INFERENCE_NUM_THREADS": num_threads,
            "PERFORMANCE_HINT": "LATENCY",
        }
        self._core = ov.Core()
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
        if width > self._widths[-1]:
            return self._plain.step(x_BWH, own, mask_P, memory)
        wide = next(wide for wide in self._widths if wide >= width)
        most = _BATCHES[-1]
        if batch > most:
            parts = [slice(i, i + most) for i in range(0, batch, most)]
            done = [
                self.step(x_BWH[part], own[:, part], mask_P, memory.part(part)) for part in parts
            ]
            return torch.cat([states for states, _ in done]), torch.cat([k for _, k in done], 1)
        size = next(size for size in _BATCHES if size >= batch)
        x_BWH, own = _filled_up(x_BWH, wide, 1), _filled_up(own, wide, 2)
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
        return states[:batch, :width], key_value[:, :batch, :width]

    def _request(self, inputs: list[Tensor]) -> ov.InferRequest:
        """Of the model compiled for these sizes."""
        key = tuple(inputs[0].shape)
        if key not in self._requests:
            graph = build_graph(self._fused, [tensor.shape for tensor in inputs])
            compiled = _compile_apart(self._core, graph, self._settings)
            self._requests[key] = compiled.create_infer_request()
        return self._requests[key]


def _compile_apart(core: ov.Core, graph: ov.Model, settings: dict[str, Any]) -> ov.CompiledModel:
    """In a thread that ends with it.

    OpenVINO 2026.4 gives the thread that compiles a signal stack of its own, in memory that the model frees when it is
    dropped: the thread's next signal, as a SIGTERM to the main one, would end the process.
    """
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(core.compile_model, graph, "CPU", settings).result()


def _filled_up(tensor: Tensor, size: int, dim: int) -> Tensor:
    """With copies of the first entry along `dim`, up to `size` of them."""
    missing = size - tensor.shape[dim]
    if not missing:
        return tensor
    return torch.cat([tensor, tensor.narrow(dim, 0, 1).repeat_interleave(missing, dim)], dim)
