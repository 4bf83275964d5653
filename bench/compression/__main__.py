"""`make bench NAME=compression [QUICK=1] [ARGS="--delta top_r --width 256"]`: cost and error by length of history."""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, get_args

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.compression.world import CHUNK_LEN, History, make_compressor, one_shot_tokens
from bench.report import write_report
from model.compression import Compressor
from model.quasi_linear import Delta

console = Console(stderr=True)

LENGTHS = (5_000, 20_000, 50_000, 100_000)
CHUNKS_PER_PULL = 64  # a worker's default, as in a backfill


def main() -> None:
    """Measure, print the table and the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--delta", choices=get_args(Delta), default="self")
    parser.add_argument("--width", type=int, default=64, help="of the network, with four heads")
    given = parser.parse_args()
    torch.set_num_threads(1)  # as a compression worker does
    compressor = make_compressor(given.delta, given.width)
    histories = [History(compressor, length) for length in LENGTHS]
    rounds = 3 if given.quick else 15
    measured = _measure(compressor, histories, rounds)
    errors = {
        history.length: float(
            abs(history.newest.tokens - one_shot_tokens(compressor, history)).max()
        )
        for history in track(histories, "comparing with one sum in float64", console=console)
    }
    _print(measured, errors)
    figures = _figures(measured, errors, histories[-1])
    write_report(
        "compression", given.quick, {**figures, "delta": given.delta, "width": given.width}
    )


def _measure(
    compressor: Compressor, histories: list[History], rounds: int
) -> dict[str, dict[int, float]]:
    """Median milliseconds by length. Lengths take turns, so that a busy moment meets all of them."""
    ways: dict[str, Callable[[History], Any]] = {
        "one chunk": lambda h: compressor.roll(h.base, h.chunks[-1:], h.length, 0),
        "all, chunk by chunk": lambda h: compressor.roll(None, h.chunks, h.length, 0),
        "all, in one pass": lambda h: compressor.roll(None, [h.rows], h.length, 0),
        "one pull": lambda h: compressor.roll(None, h.chunks[:CHUNKS_PER_PULL], h.length, 0),
    }
    times: dict[str, dict[int, list[float]]] = {
        way: {h.length: [] for h in histories} for way in ways
    }
    for _ in track(range(rounds), "compressing", console=console):
        for way, run in ways.items():
            for history in histories * (20 if way == "one chunk" else 1):
                start = time.perf_counter()
                run(history)
                times[way][history.length].append(1e3 * (time.perf_counter() - start))
    return {
        way: {length: statistics.median(found) for length, found in by_length.items()}
        for way, by_length in times.items()
    }


def _figures(
    measured: dict[str, dict[int, float]], errors: dict[int, float], longest: History
) -> dict[str, float]:
    chunk = measured["one chunk"]
    recompute = _recompute(measured, longest.length)
    return {
        "ratio_at_100k": round(recompute / chunk[longest.length], 1),
        "flatness": round(chunk[longest.length] / chunk[min(chunk)], 3),
        "max_abs_error": max(errors.values()),
        "chunk_ms": round(chunk[longest.length], 3),
        "recompute_ms_at_100k": round(recompute, 1),
        "ratio_at_5k": round(_recompute(measured, min(chunk)) / chunk[min(chunk)], 1),
        "chunks_per_s": round(1e3 / chunk[longest.length]),
        "chunks_per_s_backfill": round(
            1e3 * CHUNKS_PER_PULL / measured["one pull"][longest.length]
        ),
        "accumulator_bytes": len(longest.base.accumulators),
    }


def _recompute(measured: dict[str, dict[int, float]], length: int) -> float:
    """The faster way to compress all of a history."""
    return min(measured["all, chunk by chunk"][length], measured["all, in one pass"][length])


def _print(measured: dict[str, dict[int, float]], errors: dict[int, float]) -> None:
    table = Table(
        "interactions",
        "one chunk, ms",
        "all by chunks, ms",
        "all at once, ms",
        "ratio",
        "max error",
    )
    for length, error in errors.items():
        chunk, by_chunk, at_once = (
            measured[way][length]
            for way in ("one chunk", "all, chunk by chunk", "all, in one pass")
        )
        table.add_row(
            f"{length:,}",
            f"{chunk:.3f}",
            f"{by_chunk:.1f}",
            f"{at_once:.1f}",
            f"{_recompute(measured, length) / chunk:.0f}",
            f"{error:.1e}",
        )
    Console().print(table)
    console.print(f"{CHUNK_LEN} interactions per chunk")


if __name__ == "__main__":
    main()
