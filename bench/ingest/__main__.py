"""`make bench NAME=ingest [QUICK=1]`: every section in turn, on one broker."""

import argparse
import os
from dataclasses import dataclass
from typing import Any

from bench.ingest import hot_user, reading, scale_out
from bench.ingest.arena import Arena, open_arena
from bench.ingest.compare import compare
from bench.ingest.log import make_log, read_complete_journey
from bench.ingest.records import Record, encode
from bench.report import write_report
from stream.topics import TopicsConfig

SECTIONS = ("synthetic", "complete_journey", "scale_out", "reading", "hot_user")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much of everything."""

    num_events: int
    num_users: int
    journey_events: int | None
    repeats: int
    reading_load: int
    hot_events: int
    """Of the hot user, and of all others together."""
    hot_seconds: float


FULL = Sizes(
    num_events=2_000_000,
    num_users=1_000_000,
    journey_events=None,
    repeats=3,
    reading_load=2_000_000,
    hot_events=1_000_000,
    hot_seconds=20,
)
QUICK = Sizes(
    num_events=200_000,
    num_users=20_000,
    journey_events=150_000,
    repeats=2,
    reading_load=400_000,
    hot_events=100_000,
    hot_seconds=4,
)


def main() -> None:
    """Run the sections, print their tables and the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything: two minutes")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="these sections alone")
    given = parser.parse_args()
    with open_arena() as arena:
        figures = _measure(arena, QUICK if given.quick else FULL, given.only or SECTIONS)
    figures["load_average_at_end"] = round(os.getloadavg()[0], 2)
    write_report("ingest", given.quick, figures)


def _measure(arena: Arena, sizes: Sizes, sections: tuple[str, ...]) -> dict[str, Any]:
    synthetic = _synthetic(sizes.num_events, sizes.num_users)
    figures: dict[str, Any] = {}
    if "synthetic" in sections:
        figures |= compare(arena, "synthetic", synthetic, sizes.repeats).figures()
    if "complete_journey" in sections:
        log = read_complete_journey(sizes.journey_events)
        journey = encode(log, TopicsConfig().num_partitions)
        compared = compare(arena, "complete-journey", journey, sizes.repeats)
        figures |= {f"complete_journey_{name}": v for name, v in compared.figures().items()}
    if "scale_out" in sections:
        topics = arena.filled("scale-out", synthetic)
        figures |= scale_out.measure(arena, topics, len(synthetic), sizes.repeats)
    if "reading" in sections:
        same = sizes.reading_load == sizes.num_events
        load = synthetic if same else _synthetic(sizes.reading_load, sizes.num_users)
        figures |= reading.measure(arena, load)
    if "hot_user" in sections:
        hot, seconds = sizes.hot_events, sizes.hot_seconds
        figures["hot_user"] = hot_user.measure(arena, hot, hot, seconds)
    return figures


def _synthetic(num_events: int, num_users: int) -> list[Record]:
    return encode(make_log(num_events, num_users), TopicsConfig().num_partitions)


if __name__ == "__main__":
    main()
