"""One step of the decoder under every engine there is: what compiling takes, what a step takes, how exact it is."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bench.recommend.alternate import alternate
from bench.recommend.compiled import (
    OnnxRuntimeEngine,
    TorchCompileEngine,
    has_onnx_runtime,
    has_torch_compile,
)
from bench.recommend.engines import STEPS, make_step, served
from bench.recommend.world import Sizes, User, histories_of, make_fused
from model.engine import Engine
from model.fused_decoder import Memory

Inputs = tuple[Tensor, Tensor, Tensor, Memory]
_TWIN = "torch fp32"


def measure(sizes: Sizes) -> dict[str, Any]:
    """`engines`: by number of beams and requests; `engine_served`: what a node takes."""
    found: dict[str, Any] = {}
    torch.set_num_threads(sizes.threads[0])
    for beam in sizes.step_beams:
        for batch in sizes.step_batches:
            found[f"beam{beam}_batch{batch}"] = _of_case(sizes, beam, batch)
    _print(found)
    name = served(sizes, sizes.beams[0], sizes.threads[0])
    return {"engine_served": name, "engines": found}


@torch.inference_mode()
def _of_case(sizes: Sizes, beam: int, batch: int) -> dict[str, Any]:
    """Engines take turns; errors are those of states, whose root mean square is about one."""
    inputs = _inputs(sizes, beam, batch)
    found: dict[str, Any] = {}
    engines: dict[str, Engine] = {}
    for name, make in _makers(sizes, beam).items():
        engine, start_s = make(), time.perf_counter()
        engine.step(*inputs)
        found[name] = {"first_step_s": round(time.perf_counter() - start_s, 2)}
        engines[name] = engine
    expected = engines[_TWIN].step(*inputs)[0].clone()
    runs = {name: partial(engine.step, *inputs) for name, engine in engines.items()}
    times = alternate(runs, sizes.rounds, f"steps, {batch} x {beam}", sizes.case_s)
    for name, engine in engines.items():
        error = (engine.step(*inputs)[0] - expected).abs().max()
        found[name] |= {**times[name].figures(), "max_abs_error": float(f"{error:.2g}")}
    return found


def _makers(sizes: Sizes, beam: int) -> dict[str, Callable[[], Engine]]:
    """New ones for every case: each is compiled for one number of requests and beams."""
    fused, threads = make_fused(sizes), torch.get_num_threads()
    makers: dict[str, Callable[[], Engine]] = {
        name: partial(make_step, name, sizes, beam, threads) for name in STEPS
    }
    if sizes.with_torch_compile and has_torch_compile():
        makers["torch.compile fp32"] = partial(TorchCompileEngine, fused, "fp32")
        if "torch bf16" in STEPS:
            makers["torch.compile bf16"] = partial(TorchCompileEngine, fused, "bf16")
    if has_onnx_runtime():
        makers["onnxruntime fp32"] = partial(OnnxRuntimeEngine, fused, threads)
    return makers


def _inputs(sizes: Sizes, beam: int, batch: int) -> Inputs:
    """Of the second of three levels, for users with all streams."""
    memory = User(sizes, histories_of(sizes)[-1]).user_context.memory
    num_earlier = max(0, sizes.num_levels - 2)
    head_width = sizes.width // sizes.num_heads
    shape = (sizes.num_blocks, batch, beam, num_earlier, 2, sizes.num_heads, head_width)
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(batch, beam, sizes.width, generator=generator),
        torch.randn(shape, generator=generator),
        torch.zeros(num_earlier + 2),
        Memory.join([memory] * batch),
    )


def _print(found: dict[str, Any]) -> None:
    names = next(iter(found.values()))
    title = (
        "a step: p50 wall (processor), ms; first step with compilation, s; greatest error of states"
    )
    table = Table("engine", *found, title=title)
    for name in names:
        table.add_row(name, *(_cell(case[name]) for case in found.values()))
    Console(width=150).print(table)


def _cell(case: dict[str, float]) -> str:
    return (
        f"{case['p50_ms']:.2f} ({case['undisturbed_p50_ms']:.2f}); "
        f"{case['first_step_s']:.1f}; {case['max_abs_error']:.0e}"
    )
