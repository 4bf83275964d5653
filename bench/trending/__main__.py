"""How fast one process counts what trends, beside a state node's ingest and a Faust table of the same events.

make bench NAME=trending [QUICK=1]
"""

import argparse
from statistics import median
from typing import Any

from rich.table import Table

from bench.ingest.arena import Arena, open_arena, output
from bench.ingest.log import make_log
from bench.ingest.records import encode
from bench.report import write_report
from stream.topics import TopicsConfig

NUM_EVENTS, QUICK_NUM_EVENTS = 1_000_000, 300_000
REPEATS, QUICK_REPEATS = 3, 1
FAUST_PART = 20
"""Faust gets one in so many events."""


def main() -> None:
    """Measure, print a table and the report."""
    parser = argparse.ArgumentParser(prog="make bench NAME=trending", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    with open_arena() as arena:
        num_events = QUICK_NUM_EVENTS if quick else NUM_EVENTS
        figures = measure(arena, num_events, QUICK_REPEATS if quick else REPEATS)
    write_report("trending", quick, figures)


def measure(arena: Arena, num_events: int, repeats: int) -> dict[str, Any]:
    """Events a second of each engine, medians."""
    records = encode(make_log(num_events, num_events // 10), TopicsConfig().num_partitions)
    topics = arena.filled("trending", records)
    few = num_events // FAUST_PART
    part = arena.filled("trending-part", records[:few])
    rates: dict[str, list[float]] = {}
    for _ in range(repeats):
        for engine in ("gemstream", "trending"):
            outcome = arena.run(engine, topics, num_events)
            counted = outcome.get("counted", num_events)
            rates.setdefault(engine, []).append(counted / outcome["seconds"])
    rates["faust"] = [few / arena.run("faust", part, few)["seconds"]]
    table = Table("engine", "events/s")
    for engine, of_runs in rates.items():
        table.add_row(engine, f"{median(of_runs):,.0f}")
    output.print(table)
    counting = median(rates["trending"])
    return {
        "events_per_s": round(counting),
        "ratio_to_ingest": round(counting / median(rates["gemstream"]), 2),
        "ratio_to_faust_table": round(counting / rates["faust"][0], 1),
    }


if __name__ == "__main__":
    main()
