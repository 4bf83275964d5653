"""Which engine runs the decoder: the one that is fastest here, unless the operator says otherwise."""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from model.engine import DTYPES, Engine, TorchEngine
from model.engine_config import EngineConfig, Precision
from model.errors import ModelConfigError
from model.fused_decoder import FusedDecoder, Memory
from model.openvino_engine import OpenVinoEngine

log = logging.getLogger(__name__)

GPU = torch.device("cuda")
_TRIALS = 15
_TRIALS_MS = 1_500.0
"""After so long no further round of trials begins."""
_WORTH_ROUNDING = 0.9
"""bf16 rounds: it has to be this much faster to be taken for it."""


@dataclass(frozen=True)
class EngineChoice:
    """Makes the engine for a decoder; what model.recommender.Recommender is given."""

    config: EngineConfig
    beam_width: int
    max_batch: int
    num_threads: int

    def __call__(self, fused: FusedDecoder, memory: Memory, num_earlier: int) -> Engine:
        """The fastest of those that the configuration allows, compiled for batches up to `max_batch`.

        `memory` is any one context's, `num_earlier` the places for earlier codes.
        """
        inputs = _inputs(memory, self.beam_width, num_earlier)
        engines = self._candidates(fused)
        chosen = engines[0]
        if len(engines) > 1:
            times_ms = _quickest_ms(engines, inputs)
            chosen = _fastest(engines, times_ms)
            log.info(
                "the decoder runs on %s; a step of %d beams takes %s",
                chosen.name,
                self.beam_width,
                ", ".join(
                    f"{ms:.2f} ms on {e.name}" for e, ms in zip(engines, times_ms, strict=True)
                ),
            )
        self._prepare(chosen, inputs)
        return chosen

    def _candidates(self, fused: FusedDecoder) -> list[Engine]:
        on_gpu = self._on_gpu(fused)
        if self.config.device == "cuda":
            return on_gpu
        has_bf16 = OpenVinoEngine.has_bf16()
        precisions: list[Precision] = []
        if self.config.precision in ("auto", "fp32"):
            precisions.append("fp32")
        if self.config.precision == "bf16" or (self.config.precision == "auto" and has_bf16):
            precisions.append("bf16")
        engines: list[Engine] = []
        for precision in precisions:
            # PyTorch's many small operators gain nothing from bf16: it has to be asked for.
            if self.config.name == "torch" or (self.config.name == "auto" and precision == "fp32"):
                engines.append(TorchEngine(fused, precision))
            if self.config.name in ("auto", "openvino"):
                engines.append(OpenVinoEngine(fused, self.beam_width, precision, self.num_threads))
        return engines + on_gpu

    def _on_gpu(self, fused: FusedDecoder) -> list[Engine]:
        """PyTorch on the GPU that it sees. Raises ModelConfigError where one is asked for and there is none."""
        if self.config.device == "cpu" or self.config.name == "openvino":
            return []
        if not torch.cuda.is_available():
            if self.config.device == "auto":
                return []
            raise ModelConfigError(
                "engine.device is 'cuda', but PyTorch sees no GPU: check `nvidia-smi`, and that PyTorch is a CUDA build "
                '(torch.version.cuda), or set device = "auto" in [inference_node.engine]'
            )
        asked = self.config.precision
        precisions: tuple[Precision, ...] = ("fp32", "bf16") if asked == "auto" else (asked,)
        return [TorchEngine(fused, precision, GPU) for precision in precisions]

    def _prepare(self, engine: Engine, inputs: "_Inputs") -> None:
        """A first step of every size takes its time: better now than in a request's."""
        size = 1
        while size < 2 * self.max_batch:  # the largest batch is padded to a power of two
            for width in (1, self.beam_width):  # of a last level, where few codes are open, too
                engine.step(*inputs.given_to(engine, size, width))
            size *= 2


@dataclass(frozen=True)
class _Inputs:
    """Of one step, for one context."""

    x: torch.Tensor
    own: torch.Tensor
    mask: torch.Tensor
    memory: Memory

    def given_to(
        self, engine: Engine, size: int, width: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Memory]:
        """For as many contexts and beams, as the engine has them from the contexts' encoder."""
        dtype, device = DTYPES[engine.precision], engine.device
        own = self.own[:, :, :width].repeat(1, size, *[1] * (self.own.dim() - 2))
        return (
            self.x[:, :width].repeat(size, 1, 1),
            own.to(device, dtype),
            self.mask,
            Memory.join([self.memory] * size).to(dtype, device),
        )


def _inputs(memory: Memory, beam_width: int, num_earlier: int) -> _Inputs:
    _, num_blocks, _, heads, head_width = memory.bos.shape
    return _Inputs(
        torch.randn(1, beam_width, heads * head_width),
        torch.zeros(num_blocks, 1, beam_width, num_earlier, 2, heads, head_width),
        torch.zeros(num_earlier + 2),
        memory,
    )


@torch.inference_mode()
def _quickest_ms(engines: Sequence[Engine], inputs: _Inputs) -> list[float]:
    """Of a few steps of each, in turns: what else the machine does slows some of them down, and none is ever too fast."""
    width = inputs.x.shape[1]
    of_one = [inputs.given_to(engine, 1, width) for engine in engines]
    best = [math.inf] * len(engines)
    spent_ms = 0.0
    for trial in range(_TRIALS + 1):
        for place, engine in enumerate(engines):
            start_s = time.perf_counter()
            engine.step(*of_one[place])
            taken_ms = (time.perf_counter() - start_s) * 1e3
            if trial:  # the first compiles
                best[place] = min(best[place], taken_ms)
                spent_ms += taken_ms
        if trial and spent_ms > _TRIALS_MS:
            break
    return best


def _fastest(engines: Sequence[Engine], times_ms: Sequence[float]) -> Engine:
    def cost(place: int) -> float:
        exact = engines[place].name.endswith("fp32")
        return times_ms[place] * (_WORTH_ROUNDING if exact else 1.0)

    return engines[min(range(len(engines)), key=cost)]
