"""`make bench NAME=soak [QUICK=1]`: load a state node for ten minutes and look at it every second."""

import argparse
import asyncio
import contextlib
import os
import time
from typing import Any

from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.ingest.arena import Arena, console, open_arena, output
from bench.ingest.quantiles import quantiles_ms
from bench.lag import GroupWatch
from bench.report import RESULTS, write_report
from bench.soak.load import Load, Reads, Sent, produce, read
from bench.soak.samples import Sample, newest_growth, rss_slope, write_csv
from bench.state_node import StateNodeProcess
from services.channels import Target
from services.clients import describe_store
from stream.topics import TopicsConfig

FULL = Load(seconds=600, rate_per_s=30_000, active_s=50, idle_s=10)
QUICK = Load(seconds=75, rate_per_s=30_000, active_s=12, idle_s=3)
GROUP = "soak"
_CAUGHT_UP_WITHIN_S = 30.0
_DESCRIBE_TIMEOUT_S = 120.0


def main() -> None:
    """Run, print, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under two minutes")
    parser.add_argument(
        "--cache-mib",
        type=int,
        help="RocksDB's cache and memtables, instead of the defaults: full sooner",
    )
    given = parser.parse_args()
    quick = given.quick
    load = QUICK if quick else FULL
    with open_arena() as arena:
        topics = arena.topics(GROUP)
        directory = arena.directory / "node"
        with StateNodeProcess(directory, arena.bootstrap, topics, GROUP, given.cache_mib) as node:
            samples, sent, reads = asyncio.run(_soak(load, arena, topics, node))
            describe_s = _describe(node.address)
        disk_bytes = sum(path.stat().st_size for path in directory.rglob("*.sst"))
    write_csv(samples, RESULTS / "soak.csv")
    figures = _figures(load, samples, sent, reads)
    figures |= {"disk_mib": round(disk_bytes / 2**20, 1), "describe_store_s": round(describe_s, 2)}
    figures["cache_mib"] = given.cache_mib
    _print(figures)
    write_report("soak", quick, figures)


async def _soak(
    load: Load, arena: Arena, topics: TopicsConfig, node: StateNodeProcess
) -> tuple[list[Sample], Sent, Reads]:
    """Ends when everything that was sent is applied, or after a while."""
    sent, reads = Sent(), Reads()
    samples: list[Sample] = []
    columns = (TextColumn("{task.description}"), TimeElapsedColumn())
    async with GroupWatch(arena.bootstrap, topics, GROUP) as group:
        start = time.monotonic()
        producing = asyncio.create_task(produce(load, arena.bootstrap, topics, sent))
        reading = asyncio.create_task(read(load, node.address, sent, reads))
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("starting")
            while not producing.done() or samples[-1].lag_events:
                sample = await _sample(time.monotonic() - start, node, group, sent)
                samples.append(sample)
                progress.update(
                    task,
                    description=f"{sample.sent:>12,} events, lag {sample.lag_events:>7,}, {sample.rss_mib:6.0f} MiB",
                )
                if sample.second > load.seconds + _CAUGHT_UP_WITHIN_S:
                    break
                await asyncio.sleep(1 - (time.monotonic() - start) % 1)
        await producing
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
    return samples, sent, reads


async def _sample(second: float, node: StateNodeProcess, group: GroupWatch, sent: Sent) -> Sample:
    total = sent.total
    applied = sum(await group.committed())
    process = node.watched
    with process.oneshot():
        cpu, io = process.cpu_times(), process.io_counters()
        return Sample(
            second=round(second, 2),
            rss_mib=round(process.memory_info().rss / 2**20, 1),
            open_files=process.num_fds(),
            threads=process.num_threads(),
            cpu_s=round(cpu.user + cpu.system, 2),
            written_mib=round(io.write_bytes / 2**20, 1),
            lag_events=max(0, total - applied),
            lag_s=round(sent.waiting_s(applied), 3),
            sent=total,
        )


def _describe(address: str) -> float:
    """Seconds that an operator's `store stats` takes on a store of this size."""
    start = time.perf_counter()
    describe_store(Target(address), _DESCRIBE_TIMEOUT_S)
    return time.perf_counter() - start


def _figures(load: Load, samples: list[Sample], sent: Sent, reads: Reads) -> dict[str, Any]:
    lags = [sample.lag_s for sample in samples]
    return {
        "seconds": round(samples[-1].second, 1),
        "rate_per_s": load.rate_per_s,
        "events": sent.total,
        "rss_slope_mib_per_minute": round(rss_slope(samples), 2),
        "rss_growth_last_quarter_mib": round(newest_growth(samples), 1),
        "max_rss_mib": round(max(sample.rss_mib for sample in samples)),
        "max_open_files": max(sample.open_files for sample in samples),
        "max_lag_events": max(sample.lag_events for sample in samples),
        "max_lag_s": round(max(lags), 2),
        "median_lag_s": round(sorted(lags)[len(lags) // 2], 3),
        "lag_at_end_events": samples[-1].lag_events,
        "cores": round(samples[-1].cpu_s / samples[-1].second, 2),
        "written_mib": samples[-1].written_mib,
        "reads": quantiles_ms(reads.taken_ms),
        "reads_not_found": reads.not_found,
        "reads_failed": reads.failed,
        "load_average_at_end": round(os.getloadavg()[0], 2),
    }


def _print(figures: dict[str, Any]) -> None:
    table = Table("figure", "value", title="A state node under a steady load with pauses")
    for name, value in figures.items():
        table.add_row(name, str(value))
    table.caption = f"every second: {RESULTS / 'soak.csv'}"
    output.print(table)


if __name__ == "__main__":
    main()
