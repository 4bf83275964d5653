"""Which engine runs the decoder: the one that is fastest here, unless the operator says otherwise."""

import logging
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from model.engine import Engine, TorchEngine
from model.engine_config import EngineConfig, Precision
from model.fused_decoder import FusedDecoder, Memory
from model.openvino_engine import OpenVinoEngine

log = logging.getLogger(__name__)

_TRIALS = 9
_TRIAL_MS = 300.0
"""An engine that takes so long for a few steps is not tried further."""
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
            times_ms = [_median_ms(engine, inputs) for engine in engines]
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
        return engines

    def _prepare(self, engine: Engine, inputs: "_Inputs") -> None:
        """A first step of every size takes its time: better now than in a request's."""
        size = 1
        while size <= self.max_batch:
            engine.step(*inputs.times(size))
            size *= 2


@dataclass(frozen=True)
class _Inputs:
    """Of one step, for one context."""

    x: torch.Tensor
    own: torch.Tensor
    mask: torch.Tensor
    memory: Memory

    def times(self, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Memory]:
        """For as many contexts."""
        return (
            self.x.repeat(size, 1, 1),
            self.own.repeat(1, size, *[1] * (self.own.dim() - 2)),
            self.mask,
            Memory.join([self.memory] * size),
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
def _median_ms(engine: Engine, inputs: _Inputs) -> float:
    of_one = inputs.times(1)
    engine.step(*of_one)
    times: list[float] = []
    while len(times) < _TRIALS and sum(times) < _TRIAL_MS:
        start_s = time.perf_counter()
        engine.step(*of_one)
        times.append((time.perf_counter() - start_s) * 1e3)
    return statistics.median(times)


def _fastest(engines: Sequence[Engine], times_ms: Sequence[float]) -> Engine:
    def cost(place: int) -> float:
        exact = engines[place].name.endswith("fp32")
        return times_ms[place] * (_WORTH_ROUNDING if exact else 1.0)

    return engines[min(range(len(engines)), key=cost)]
