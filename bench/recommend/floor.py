"""The least that a search could take: its arithmetic at the measured speed of matrix products, its bytes at that of memory.

A row is one decoder state: BOS once, then every beam on every level but the last; states of earlier levels are kept.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional

from bench.recommend.alternate import alternate, undisturbed_clock
from bench.recommend.engines import ENGINES, SERVED
from bench.recommend.world import Encoder, Sizes, histories_of, make_catalogue, make_network
from model.decoder import Context
from model.network import Network

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_STREAMS = 3
_LARGE = 32 * 1024 * 1024  # float32 numbers: several times any cache


@dataclass(frozen=True)
class Work:
    """What a search with a ready context cannot do without."""

    row_flops: float
    """Products with beams as rows, and attention."""
    key_flops: float
    """Keys and values of the context, and the indexer."""
    numbers_read: float
    """Weights and keys, once per level; the mid-term vectors once per block."""


def work_of(network: Network, context: Context, num_levels: int, beam_width: int) -> Work:
    """Of one search: two operations per multiply-add."""
    width, ffn_width = network.config.layer.width, network.config.layer.ffn_width
    blocks, codes = network.config.num_blocks, network.codebooks_DKH.shape[1]
    mid_term_len = context.mid_term.mask.shape[1]
    selected = min(network.config.mid_term.top_k, mid_term_len)
    keys = context.recent.mask.shape[1] + selected + context.lifecycle.mask.shape[1]
    rows = 1 + beam_width * (num_levels - 1)
    row_weights = 4 * width**2 + _STREAMS * (2 * width**2 + 3 * width * ffn_width)
    key_weights = _STREAMS * 2 * width**2
    row_flops = blocks * rows * 2 * (row_weights + 2 * keys * width) + rows * 2 * width * codes
    key_flops = blocks * 2 * (keys * 2 * width**2 + mid_term_len * width)
    per_level = blocks * (row_weights + 2 * keys * width) + codes * width
    numbers_read = num_levels * per_level + blocks * (key_weights + mid_term_len * width)
    return Work(row_flops, key_flops, numbers_read)


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
    network = make_network(sizes)
    trie = make_catalogue(sizes.catalogues[0], sizes.num_levels, sizes.codebook_size).trie
    context = Encoder(network, histories_of(sizes)[-1])()
    engine = ENGINES[SERVED](network, trie, beam)
    ours = {"ours": lambda: engine(context)}
    times = alternate(ours, max(5, sizes.rounds // 4), "floor", sizes.case_s)["ours"]
    work, bandwidth = work_of(network, context, sizes.num_levels, beam), _numbers_per_s()
    floors = {name: _floor(sizes, work, beam, bandwidth, dtype) for name, dtype in _DTYPES.items()}
    ours_ms = times.figures()["undisturbed_p50_ms"]
    floor_ms = min(floor["floor_ms"] for floor in floors.values())
    return {
        **floors,
        "gflop": round((work.row_flops + work.key_flops) / 1e9, 3),
        "gb_per_s": round(4 * bandwidth / 1e9, 1),
        "ours_undisturbed_p50_ms": ours_ms,
        "share_of_floor": round(floor_ms / ours_ms, 3),
        "share_of_fp32_floor": round(floors["fp32"]["floor_ms"] / ours_ms, 3),
    }


def _floor(
    sizes: Sizes, work: Work, beam: int, float32_per_s: float, dtype: torch.dtype
) -> dict[str, float]:
    """Arithmetic and memory at the same time: the longer one counts."""
    width, ffn_width = sizes.width, sizes.ffn_width
    row_rate = _flops_per_s(
        beam, ((width, width), (width, 2 * ffn_width), (ffn_width, width)), dtype
    )
    key_rate = _flops_per_s(sizes.histories[0], ((width, 2 * width),), dtype)
    arithmetic_ms = 1e3 * (work.row_flops / row_rate + work.key_flops / key_rate)
    memory_ms = 1e3 * work.numbers_read * dtype.itemsize / (4 * float32_per_s)
    return {
        "arithmetic_ms": round(arithmetic_ms, 3),
        "memory_ms": round(memory_ms, 3),
        "floor_ms": round(max(arithmetic_ms, memory_ms), 3),
        "gflop_per_s": round(row_rate / 1e9, 1),
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
