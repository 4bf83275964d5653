"""`make bench NAME=recommend [QUICK=1] [ARGS="--only search_rivals"]`: every section in turn."""

import argparse
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.recommend import end_to_end, engine_steps, floor, histories, levels, rivals
from bench.recommend.world import Sizes
from bench.report import write_report

SECTIONS: dict[str, Callable[[Sizes], dict[str, Any]]] = {
    "end_to_end": end_to_end.measure,
    "engines": engine_steps.measure,
    "search_rivals": rivals.measure,
    "search_histories": histories.measure,
    "search_levels": levels.measure,
    "search_floor": floor.measure,
}
"""A section prints its tables and gives its figures; those of the model alone begin with search_."""

QUICK_SECTIONS = ("end_to_end", "engines", "search_histories", "search_floor")
"""The rivals are in the first, too; others with --only."""

FULL = Sizes()
QUICK = Sizes(
    catalogues=(28_000,),
    threads=(1,),
    rounds=20,
    rival_threads=(1,),
    rival_rounds=2,
    case_s=2,
    step_beams=(32,),
    step_batches=(1,),
    with_torch_compile=False,
    users_per_life=2,
    max_batch=2,
    load_s=0.7,
    moves=5,
)


def main() -> None:
    """Run the sections, print their tables and the report."""
    parser = argparse.ArgumentParser(prog="make bench NAME=recommend", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="less of everything: two minutes where nothing else runs",
    )
    parser.add_argument("--only", choices=SECTIONS, action="append", help="these sections alone")
    parser.add_argument("--sids", type=int, help="of the catalogue of every section")
    given = parser.parse_args()
    sizes = QUICK if given.quick else FULL
    figures = measure(
        dataclasses.replace(sizes, catalogues=(given.sids,)) if given.sids else sizes,
        given.only or (QUICK_SECTIONS if given.quick else list(SECTIONS)),
    )
    write_report("recommend", given.quick, figures)


def measure(sizes: Sizes, names: Sequence[str]) -> dict[str, Any]:
    """The figures of these sections, and what the machine was like."""
    load = [round(os.getloadavg()[0], 2)]
    figures: dict[str, Any] = {}
    took_s = {}
    for name in names:
        start = time.monotonic()
        figures |= SECTIONS[name](sizes)
        took_s[name] = round(time.monotonic() - start, 1)
        load.append(round(os.getloadavg()[0], 2))
    return {**figures, "section_seconds": took_s, "load_average": load}


if __name__ == "__main__":
    main()
