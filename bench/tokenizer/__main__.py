"""Seconds and peak memory of fitting each kind of tokenizer; each measurement in a process of its own.

make bench NAME=tokenizer [QUICK=1] [ARGS="--items 1000000 --threads 2"]
"""

import argparse
import json
import subprocess
import sys

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.report import write_report
from bench.tokenizer.measure import KINDS

NUM_ITEMS, QUICK_NUM_ITEMS = 1_000_000, 100_000
COLUMNS = ("fit_s", "fit_cpu_s", "assign_s", "vectors_mib", "peak_mib", "unexplained")
console = Console(stderr=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench NAME=tokenizer", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--items", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    given = parser.parse_args()
    num_items = given.items or (QUICK_NUM_ITEMS if given.quick else NUM_ITEMS)
    figures: dict[str, dict[str, float]] = {}
    table = Table("tokenizer", *COLUMNS)
    with Progress(console=console) as progress:
        for kind in progress.track(given.kinds, description=f"{num_items:,} vectors"):
            command = [sys.executable, "-m", "bench.tokenizer.measure", kind, str(num_items)]
            command += ["--threads", str(given.threads)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
            figures[kind] = json.loads(done.stdout)
            table.add_row(kind, *(f"{figures[kind][column]:,}" for column in COLUMNS))
    console.print(table)
    write_report("tokenizer", given.quick, {"items": num_items, "tokenizers": figures})


if __name__ == "__main__":
    main()
