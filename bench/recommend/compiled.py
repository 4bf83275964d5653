"""Compilers of the decoder's step that were measured and not chosen: torch.compile and ONNX Runtime."""

import importlib.util
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.engine import DTYPES, HOST
from model.engine_config import Precision
from model.fused_decoder import FusedDecoder, Memory


def has_torch_compile() -> bool:
    """It needs a C++ compiler."""
    return shutil.which("g++") is not None


def has_onnx_runtime() -> bool:
    """Of the bench group, with what exports to it."""
    return all(importlib.util.find_spec(name) for name in ("onnxruntime", "onnxscript"))


class TorchCompileEngine:
    """`torch.compile` for fixed sizes, weights frozen into it, called through C++."""

    def __init__(self, fused: FusedDecoder, precision: Precision) -> None:
        """Nothing is compiled before the first step."""
        self.name = f"torch.compile {precision}"
        self.precision, self.device = precision, HOST
        self._dtype = DTYPES[precision]
        options: dict[str, Any] = {"freezing": True, "cpp_wrapper": True}
        self._compiled = torch.compile(
            fused.copied_to(self._dtype, HOST), dynamic=False, fullgraph=True, options=options
        )

    def step(
        self, x_BWH: Tensor, own: Tensor, mask_P: Tensor, memory: Memory
    ) -> tuple[Tensor, Tensor]:
        """As FusedDecoder.forward."""
        with torch.inference_mode(False), torch.no_grad():
            inputs = [t.to(self._dtype) for t in (x_BWH, own, mask_P, *memory.tensors)]
            states, own_new = self._compiled(*inputs)
        return states.float(), own_new.float()


class OnnxRuntimeEngine:
    """ONNX Runtime in fp32; it has no bf16 kernels for processors."""

    def __init__(self, fused: FusedDecoder, num_threads: int) -> None:
        """Nothing is exported before the first step."""
        self.name = "onnxruntime fp32"
        self.precision: Precision = "fp32"
        self.device = HOST
        self._fused, self._num_threads = fused, num_threads
        self._session: Any = None

    def step(
        self, x_BWH: Tensor, own: Tensor, mask_P: Tensor, memory: Memory
    ) -> tuple[Tensor, Tensor]:
        """As FusedDecoder.forward; of the sizes of the first step alone."""
        inputs = (x_BWH, own, mask_P, *memory.tensors)
        if self._session is None:
            self._session = self._exported(inputs)
        names = [argument.name for argument in self._session.get_inputs()]
        arrays = [tensor.contiguous().numpy() for tensor in inputs]
        states, own_new = self._session.run(None, dict(zip(names, arrays, strict=True)))
        return torch.from_numpy(states), torch.from_numpy(own_new)

    def _exported(self, inputs: tuple[Tensor, ...]) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._num_threads
        options.log_severity_level = 3
        copies = tuple(torch.from_numpy(np.array(tensor.numpy())) for tensor in inputs)
        with (
            tempfile.TemporaryDirectory() as directory,
            warnings.catch_warnings(),
            torch.inference_mode(False),
            torch.no_grad(),
        ):
            warnings.simplefilter("ignore")  # of parts of PyTorch that PyTorch itself calls
            path = str(Path(directory) / "step.onnx")
            torch.onnx.export(self._fused, copies, path, dynamo=True, verbose=False)
            return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
