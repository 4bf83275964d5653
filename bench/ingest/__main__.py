"""`make bench NAME=ingest [QUICK=1]`: every section in turn, on one broker."""

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
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
    scale_out_repeats: int
    faust_part: int
    """Faust, some hundred times slower, gets one in so many events."""
    reading_load: int
    """Ingested while users are read."""
    hot_events: int
    """Of the hot user, and of all others together."""
    hot_seconds: float


FULL = Sizes(
    num_events=2_000_000,
    num_users=1_000_000,
    journey_events=None,
    repeats=3,
    scale_out_repeats=3,
    faust_part=10,
    reading_load=2_000_000,
    hot_events=1_000_000,
    hot_seconds=20,
)
QUICK = Sizes(
    num_events=200_000,
    num_users=20_000,
    journey_events=150_000,
    repeats=2,
    scale_out_repeats=1,
    faust_part=20,
    reading_load=200_000,
    hot_events=100_000,
    hot_seconds=3,
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


def _measure(arena: Arena, sizes: Sizes, names: Sequence[str]) -> dict[str, Any]:
    sections = Sections(arena, sizes)
    figures: dict[str, Any] = {}
    took_s = {}
    for name in names:
        start = time.monotonic()
        figures |= getattr(sections, name)()
        took_s[name] = round(time.monotonic() - start, 1)
    return {**figures, "section_seconds": took_s}


class Sections:
    """One method per section; each gives its figures and prints its tables."""

    def __init__(self, arena: Arena, sizes: Sizes) -> None:
        """Nothing is made yet."""
        self._arena, self._sizes = arena, sizes

    def synthetic(self) -> dict[str, Any]:
        """A million users with Zipf activity."""
        sizes = self._sizes
        return compare(
            self._arena, "synthetic", self._users, sizes.repeats, sizes.faust_part
        ).figures()

    def complete_journey(self) -> dict[str, Any]:
        """A year of receipts of 2,469 households."""
        sizes = self._sizes
        log = read_complete_journey(sizes.journey_events)
        records = encode(log, TopicsConfig().num_partitions)
        compared = compare(
            self._arena, "complete-journey", records, sizes.repeats, sizes.faust_part
        )
        return {f"complete_journey_{name}": value for name, value in compared.figures().items()}

    def scale_out(self) -> dict[str, Any]:
        """Two nodes against one."""
        topics = self._arena.filled("scale-out", self._users)
        return scale_out.measure(
            self._arena, topics, len(self._users), self._sizes.scale_out_repeats
        )

    def reading(self) -> dict[str, Any]:
        """Long and short histories, read beside ingest."""
        return reading.measure(self._arena, self._users[: self._sizes.reading_load])

    def hot_user(self) -> dict[str, Any]:
        """One user among many."""
        sizes = self._sizes
        return {
            "hot_user": hot_user.measure(
                self._arena, sizes.hot_events, sizes.hot_events, sizes.hot_seconds
            )
        }

    @cached_property
    def _users(self) -> list[Record]:
        sizes = self._sizes
        return encode(make_log(sizes.num_events, sizes.num_users), TopicsConfig().num_partitions)


if __name__ == "__main__":
    main()
