"""The least that a search could take: its arithmetic at the measured speed of matrix products, its bytes at that of memory.

A row is one decoder state: of every beam on every level but the last, where the code behind it is not forced. BOS, the
context's keys and values, and those of earlier levels are kept.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional

from bench.recommend.alternate import alternate, undisturbed_clock
from bench.recommend.engines import ENGINES, decoded_rows, served
from bench.recommend.world import Sizes, User, histories_of, make_catalogue, make_network
from model.network import Network

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_STREAMS = 3
_LARGE = 32 * 1024 * 1024  # float32 numbers: several times any cache


@dataclass(frozen=True)
class Work:
    """What a search from what is kept of a user cannot do without."""

    flops: float
    """Products with beams as rows, and attention."""
    numbers_read: float
    """Weights, keys and values, once per step."""


def work_of(network: Network, num_keys: int, rows: Sequence[int]) -> Work:
    """Of one search over `num_keys` interactions and tokens per block, with so many rows per step.

    A multiply-add is two operations.
    """
    width, ffn_width = network.config.layer.width, network.config.layer.ffn_width
    blocks, codes = network.config.num_blocks, network.codebooks_DKH.shape[1]
    weights = 4 * width**2 + _STREAMS * (2 * width**2 + 3 * width * ffn_width)
    per_row = blocks * (weights + 2 * num_keys * width) + width * codes
    flops = 2 * (sum(rows) * per_row + width * codes)
    per_step = blocks * (weights + 2 * num_keys * width) + codes * width
    return Work(flops, len(rows) * per_step + codes * width)


def measure(sizes: Sizes) -> dict[str, Any]:
    """`search_share_of_floor`: the floor's time over ours, 1 is perfect; and what it consists of."""
    found = {
        f"threads{threads}": {f"beam{beam}": _of_case(sizes, threads, beam) for beam in sizes.beams}
        for threads in sizes.threads
    }
    _print(found)
    headline = found[f"threads{sizes.threads[0]}"]
    figures = {
        f"search_share_of_floor_beam{beam}": headline[f"beam{beam}"]["share_of_floor"]
        for beam in sizes.beams[1:]
    }
    first = headline[f"beam{sizes.beams[0]}"]["share_of_floor"]
    return {"search_share_of_floor": first, **figures, "search_floor": found}


def _of_case(sizes: Sizes, threads: int, beam: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    trie = make_catalogue(sizes.catalogues[0], sizes.num_levels, sizes.codebook_size).trie
    user = User(sizes, histories_of(sizes)[-1]).encoded()
    engine = ENGINES[served(sizes, beam, threads)](sizes, trie, beam)
    times = alternate(
        {"ours": lambda: engine(user)}, max(5, sizes.rounds // 4), "floor", sizes.case_s
    )
    rows = decoded_rows(make_network(sizes), user.context, trie, beam)
    found = floor_of(sizes, user.user_context.num_keys[0], rows)
    ours_ms = times["ours"].figures()["undisturbed_p50_ms"]
    return {
        **found,
        "ours_undisturbed_p50_ms": ours_ms,
        "share_of_floor": round(found["floor_ms"] / ours_ms, 3),
        "share_of_fp32_floor": round(found["fp32"]["floor_ms"] / ours_ms, 3),
    }


def floor_of(sizes: Sizes, num_keys: int, rows: Sequence[int]) -> dict[str, Any]:
    """The floor in both precisions, and the lower one; the speed of products is that of the longest step."""
    work = work_of(make_network(sizes), num_keys, rows)
    bandwidth, most = _numbers_per_s(), max(rows)
    floors = {name: _floor(sizes, work, most, bandwidth, dtype) for name, dtype in _DTYPES.items()}
    return {
        **floors,
        "rows": list(rows),
        "floor_ms": min(floor["floor_ms"] for floor in floors.values()),
        "gflop": round(work.flops / 1e9, 3),
        "gb_per_s": round(4 * bandwidth / 1e9, 1),
    }


def _floor(
    sizes: Sizes, work: Work, beam: int, float32_per_s: float, dtype: torch.dtype
) -> dict[str, float]:
    """Arithmetic and memory at the same time: the longer one counts."""
    width, ffn_width = sizes.width, sizes.ffn_width
    rate = _flops_per_s(beam, ((width, width), (width, 2 * ffn_width), (ffn_width, width)), dtype)
    arithmetic_ms = 1e3 * work.flops / rate
    memory_ms = 1e3 * work.numbers_read * dtype.itemsize / (4 * float32_per_s)
    return {
        "arithmetic_ms": round(arithmetic_ms, 3),
        "memory_ms": round(memory_ms, 3),
        "floor_ms": round(max(arithmetic_ms, memory_ms), 3),
        "gflop_per_s": round(rate / 1e9, 1),
    }


@torch.inference_mode()
def _flops_per_s(rows: int, shapes: tuple[tuple[int, int], ...], dtype: torch.dtype) -> float:
    """Of products of `rows` vectors with matrices of these shapes, one after the other."""
    pairs = [
        (torch.randn(rows, wide, dtype=dtype), torch.randn(high, wide, dtype=dtype))
        for wide, high in shapes
    ]

    def multiply() -> None:
        for vectors, matrix in pairs:
            functional.linear(vectors, matrix)

    flops = sum(2 * rows * wide * high for wide, high in shapes)
    return flops / _median_s(multiply)


def _numbers_per_s() -> float:
    """float32 numbers read from memory."""
    numbers = torch.ones(_LARGE)
    return _LARGE / _median_s(numbers.sum, repeats=5)


def _median_s(run: Callable[[], object], repeats: int = 200) -> float:
    """Undisturbed, after two runs that do not count."""
    clock, times = undisturbed_clock(), []
    for _ in range(repeats + 2):
        start = clock()
        run()
        times.append(clock() - start)
    return statistics.median(times[2:])


def _print(found: dict[str, Any]) -> None:
    table = Table("case", "GFLOP", "fp32 floor, ms", "bf16 floor, ms", "ours, ms", "share of floor")
    for threads, by_beam in found.items():
        for beam, case in by_beam.items():
            table.add_row(
                f"{threads}, {beam}",
                f"{case['gflop']:.2f}",
                *(f"{case[precision]['floor_ms']:.2f}" for precision in _DTYPES),
                f"{case['ours_undisturbed_p50_ms']:.1f}",
                f"{case['share_of_floor']:.2f}",
            )
    Console().print(table)
