"""`make bench NAME=ingest [QUICK=1]`: every engine on the same log, on the same broker, one after another."""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.ingest.log import fill_topic, make_log
from bench.report import write_report
from services.local_kafka import start_kafka
from stream.topics import TopicsConfig

console = Console(stderr=True)


def main() -> None:
    """Make the logs, run the engines, print the table and the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything: two minutes")
    quick = parser.parse_args().quick
    num_events, num_users = (200_000, 20_000) if quick else (2_000_000, 1_000_000)
    with tempfile.TemporaryDirectory(prefix="gemstream-bench-") as name:
        directory = Path(name)
        broker = start_kafka(directory / "kafka")
        try:
            outcomes = _run_all(broker.bootstrap, num_events, num_users, directory)
        finally:
            broker.stop()
    _print(outcomes)
    write_report("ingest", quick, _figures(outcomes))


def _run_all(
    bootstrap: str, num_events: int, num_users: int, directory: Path
) -> dict[str, dict[str, Any]]:
    """Faust is some hundred times slower and gets a tenth of the log, of the same kind."""
    topics = {
        size: TopicsConfig(
            interactions=f"events-{size}",
            dead_letters=f"dead-{size}",
            compression_jobs=f"jobs-{size}",
        )
        for size in (num_events, num_events // 10)
    }
    for size, names in topics.items():
        with console.status(f"producing {size:,} events"):
            asyncio.run(fill_topic(bootstrap, names, make_log(size, num_users)))
    outcomes = {}
    for engine in ("bare", "gemstream", "quix", "faust"):
        size = num_events // 10 if engine == "faust" else num_events
        arguments = [engine, bootstrap, json.dumps(asdict(topics[size])), str(size)]
        with console.status(f"{engine}: {size:,} events"):
            done = subprocess.run(  # noqa: S603  our own command
                [sys.executable, "-m", "bench.ingest.engine", *arguments, str(directory / engine)],
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode:
            raise SystemExit(f"{engine} failed:\n{done.stderr[-2_000:]}")
        outcomes[engine] = {"events": size, **json.loads(done.stdout.splitlines()[-1])}
    return outcomes


def _rate(outcome: dict[str, Any]) -> float:
    return float(outcome["events"] / outcome["seconds"])


def _figures(outcomes: dict[str, dict[str, Any]]) -> dict[str, float]:
    ours = outcomes["gemstream"]
    event_bytes = 70
    return {
        "events_per_s": round(_rate(ours)),
        "ratio_to_faust": round(_rate(ours) / _rate(outcomes["faust"]), 2),
        "ratio_to_quix": round(_rate(ours) / _rate(outcomes["quix"]), 2),
        "share_of_bare_consume": round(_rate(ours) / _rate(outcomes["bare"]), 3),
        "bytes_per_interaction": round(ours["disk_bytes"] / ours["events"], 1),
        "write_amplification": round(ours["written_bytes"] / (ours["events"] * event_bytes), 2),
        "peak_memory_mib": round(ours["peak_memory_bytes"] / 2**20),
    }


def _print(outcomes: dict[str, dict[str, Any]]) -> None:
    table = Table(
        "engine", "events", "seconds", "events/s", "MiB on disk", "MiB written", "peak MiB"
    )
    for engine, outcome in outcomes.items():
        mib = [outcome[f"{name}_bytes"] / 2**20 for name in ("disk", "written", "peak_memory")]
        table.add_row(
            engine,
            f"{outcome['events']:,}",
            f"{outcome['seconds']:.2f}",
            f"{_rate(outcome):,.0f}",
            *(f"{value:.1f}" for value in mib),
        )
    Console().print(table)


if __name__ == "__main__":
    main()
