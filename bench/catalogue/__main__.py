"""`make bench NAME=catalogue [QUICK=1] [ARGS="--sizes 28000 1000000"]`: what a changing catalogue costs, by its size."""

import argparse
import json
import subprocess
import sys
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.report import write_report

console = Console(stderr=True)

SIZES, QUICK_SIZES = (28_000, 1_000_000), (28_000,)
CHANGES = (1, 100, 10_000)


def main() -> None:
    """Measure, print the table and the report; every size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the smaller catalogue, less often")
    parser.add_argument("--sizes", type=int, nargs="+")
    given = parser.parse_args()
    sizes = given.sizes or (QUICK_SIZES if given.quick else SIZES)
    effort = ["--rounds", "2", "--load-s", "3"] if given.quick else []
    figures = {}
    for size in track(sizes, "catalogues", console=console):
        command = [sys.executable, "-m", "bench.catalogue.measure", str(size), *effort]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
        figures[str(size)] = json.loads(done.stdout)
    _print(figures)
    write_report("catalogue", given.quick, {"catalogues": figures})


def _print(figures: dict[str, dict[str, Any]]) -> None:
    table = Table("", *(f"{int(size):,} items" for size in figures))
    lines: list[tuple[str, list[str]]] = [
        ("distinct SIDs", [f"{one['sids']:,}" for one in figures.values()])
    ]
    for count in CHANGES:
        for name in ("assign_s", "build_s"):
            label = f"{count:,} new items: {'SIDs' if name == 'assign_s' else 'SIDs and view'}, ms"
            values = [one[f"changes_{count}"][name] for one in figures.values()]
            lines.append((label, [f"{1e3 * value:.1f}" for value in values]))
    swaps = [one["changes_100"]["publish_s"] for one in figures.values()]
    lines.append(("swap, ms", [f"{1e3 * value:.3f}" for value in swaps]))
    for label, key, scale in (
        ("a removal, ms", "hide_ms", 1.0),
        ("sorted anew instead, ms", "sorted_anew_s", 1e3),
        ("memory of a second view, MiB", "second_view_mib", 1.0),
        ("most while it is built, MiB", "peak_during_build_mib", 1.0),
    ):
        lines.append((label, [f"{scale * one[key]:.1f}" for one in figures.values()]))
    for label, name in (("at rest", "rest"), ("while swapping", "swapping")):
        lines.append(
            (
                f"a request {label}, ms p50, p99",
                [
                    f"{one['requests'][f'{name}_p50_ms']:.1f}, {one['requests'][f'{name}_p99_ms']:.1f}"
                    for one in figures.values()
                ],
            )
        )
    for label, values in lines:
        table.add_row(label, *values)
    Console().print(table)


if __name__ == "__main__":
    main()
