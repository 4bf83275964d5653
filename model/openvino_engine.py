"""The decoder's step compiled by OpenVINO for fixed sizes; model/openvino_graph.py builds what is compiled.

Shapes: B contexts, W beams, P codes of a sequence from BOS on, H width, L blocks, A heads, C = H / A.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import openvino as ov
import torch
from torch import Tensor

from model.engine import DTYPES, HOST, TorchEngine
from model.engine_config import Precision
from model.fused_decoder import FusedDecoder, Memory
from model.openvino_graph import build_graph

_BATCHES = (1, 2, 4, 8)
"""Batches are filled up to the next of these; larger ones go through in parts."""
_TIMES = 4
"""How much narrower and wider than usual steps are compiled, too: for the beams of a last level whose last code is not
forced, and for what a search repeats with that found too little."""


class OpenVinoEngine:
    """Compiled once per size: batches of `_BATCHES`, beams of the usual number, a quarter and four times as many.

    What lies between is filled up, more beams go through PyTorch. Weights are packed per compiled size, so that each costs
    about their size in memory.
    """

    def __init__(
        self, fused: FusedDecoder, beam_width: int, precision: Precision, num_threads: int
    ) -> None:
        """Nothing is compiled before the first step of a size; see `prepare`."""
        self.name = f"openvino {precision}"
        self.precision, self.device = precision, HOST
        self._dtype = DTYPES[precision]
        self._fused = fused
        self._plain = TorchEngine(fused)
        self._widths = (-(-beam_width // _TIMES), beam_width, _TIMES * beam_width)
        self._settings: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": {"fp32": "f32", "bf16": "bf16"}[precision],
            "INFERENCE_NUM_THREADS": num_threads,
            "PERFORMANCE_HINT": "LATENCY",
        }
        self._core = ov.Core()
        self._compiled: dict[tuple[int, int], _Compiled] = {}

    @staticmethod
    def has_bf16() -> bool:
        """Whether the processor multiplies bfloat16."""
        return "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")

    def step(
        self, x_BWH: Tensor, own: Tensor, mask_P: Tensor, memory: Memory
    ) -> tuple[Tensor, Tensor]:
        """As FusedDecoder.forward; what it returns is overwritten by the next step."""
        batch, width, _ = x_BWH.shape
        if width > self._widths[-1]:
            return self._plain.step(x_BWH, own, mask_P, memory)
        wide = next(wide for wide in self._widths if wide >= width)
        most = _BATCHES[-1]
        if batch > most:
            parts = [slice(i, i + most) for i in range(0, batch, most)]
            done = [
                tuple(
                    one.clone()
                    for one in self.step(x_BWH[part], own[:, part], mask_P, memory.part(part))
                )
                for part in parts
            ]
            return torch.cat([states for states, _ in done]), torch.cat([k for _, k in done], 1)
        size = next(size for size in _BATCHES if size >= batch)
        if (size, wide) not in self._compiled:
            self._compiled[size, wide] = self._compile(size, wide, own, mask_P, memory)
        return self._compiled[size, wide].step(x_BWH, own, mask_P, memory)

    def _compile(
        self, size: int, wide: int, own: Tensor, mask_P: Tensor, memory: Memory
    ) -> "_Compiled":
        num_blocks, _, _, *of_code = own.shape
        with torch.inference_mode(mode=False):  # they are written to inside and outside of it
            states = torch.zeros(size, wide, self._fused.norm_H.shape[0])
            inputs = [
                torch.zeros_like(states),
                torch.zeros(num_blocks, size, wide, *of_code, dtype=self._dtype),
                torch.zeros(mask_P.shape),
            ]
            kept = torch.zeros(num_blocks, size, wide, *of_code[1:], dtype=self._dtype)
        shapes = [tuple(one.shape) for one in inputs]
        shapes += [(size, *one.shape[1:]) for one in memory.tensors]
        graph = build_graph(self._fused, shapes, self.precision)
        compiled = _compile_apart(self._core, graph, self._settings)
        return _Compiled(compiled.create_infer_request(), inputs, (states, kept))


@dataclass
class _Compiled:
    """What is compiled for one size, with the arrays that it reads and writes: they are bound once."""

    request: ov.InferRequest
    inputs: Sequence[Tensor]
    """Embedded codes, keys and values of earlier ones, mask; as FusedDecoder.forward, filled up."""
    outputs: tuple[Tensor, Tensor]
    bound: list[Tensor] = field(default_factory=list)
    """The memory that it reads: OpenVINO borrows it."""
    memory: Memory | None = None

    def __post_init__(self) -> None:
        """Bind what is there for good."""
        for place, tensor in enumerate(self.inputs):
            self.request.set_input_tensor(place, _shared(tensor))
        for place, tensor in enumerate(self.outputs):
            self.request.set_output_tensor(place, _shared(tensor))

    def step(
        self, x_BWH: Tensor, own: Tensor, mask_P: Tensor, memory: Memory
    ) -> tuple[Tensor, Tensor]:
        """What fills the size up is whatever was there before: no context sees another."""
        batch, width, _ = x_BWH.shape
        x, kept, mask = self.inputs
        x[:batch, :width] = x_BWH
        kept[:, :batch, :width] = own
        mask.copy_(mask_P)
        self._bind(memory)
        self.request.infer()
        states, key_value = self.outputs
        return states[:batch, :width], key_value[:, :batch, :width]

    def _bind(self, memory: Memory) -> None:
        """All steps of a search read the same memory."""
        if memory is self.memory:
            return
        size, dtype = self.inputs[0].shape[0], self.inputs[1].dtype
        bound = [_filled_up(one, size).contiguous() for one in memory.to(dtype, HOST).tensors]
        for place, tensor in enumerate(bound, len(self.inputs)):
            self.request.set_input_tensor(place, _shared(tensor))
        self.memory, self.bound = memory, bound


def _compile_apart(core: ov.Core, graph: ov.Model, settings: dict[str, Any]) -> ov.CompiledModel:
    """In a thread that ends with it.

    OpenVINO 2026.4 gives the thread that compiles a signal stack of its own, in memory that the model frees when it is
    dropped: the thread's next signal, as a SIGTERM to the main one, would end the process.
    """
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(core.compile_model, graph, "CPU", settings).result()


def _shared(tensor: Tensor) -> ov.Tensor:
    """The same memory as OpenVINO sees it."""
    if tensor.dtype == torch.bfloat16:  # which NumPy does not know
        bits = tensor.view(torch.int16).numpy()
        return ov.Tensor(bits, ov.Shape(list(tensor.shape)), ov.Type.bf16)
    return ov.Tensor(tensor.numpy(), shared_memory=True)


def _filled_up(tensor: Tensor, size: int) -> Tensor:
    """With copies of the first context, up to `size` of them."""
    missing = size - tensor.shape[0]
    if not missing:
        return tensor
    return torch.cat([tensor, tensor[:1].repeat_interleave(missing, 0)])
