"""Tokens per second and peak memory of each stage at several history lengths; each measurement in a process of its own.

make bench NAME=training [QUICK=1] [ARGS="--lengths 1000 5000"]
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.report import write_report

STAGES = ("dense", "indexer", "selection")
LENGTHS, QUICK_LENGTHS = (1_000, 5_000, 20_000, 100_000), (1_000, 5_000)
console = Console(stderr=True)


@dataclass(frozen=True)
class Case:
    length: int
    stage: str
    precision: str
    recompute: bool

    def arguments(self) -> list[str]:
        found = [str(self.length), self.stage, self.precision]
        return [*found, "--recompute"] if self.recompute else found


def cases_of(lengths: Sequence[int], in_bf16: Sequence[str]) -> list[Case]:
    """Every stage in float32, some in bf16, the last with recomputed activations."""
    return [
        case
        for length in lengths
        for case in (
            *(Case(length, stage, "fp32", False) for stage in STAGES),
            *(Case(length, stage, "bf16", False) for stage in in_bf16),
            Case(length, "selection", "fp32", True),
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench NAME=training", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--lengths", type=int, nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, help="contexts per step")
    arguments = parser.parse_args()
    lengths = arguments.lengths or (QUICK_LENGTHS if arguments.quick else LENGTHS)
    batch = arguments.batch or (2 if arguments.quick else 8)
    cases = cases_of(lengths, ("selection",) if arguments.quick else STAGES)
    figures: dict[str, dict[str, float]] = {}
    table = Table("history", "stage", "precision", "ms a step", "CPU ms", "tokens/s", "peak MiB")
    with Progress(console=console) as progress:
        for case in progress.track(cases, description="training steps"):
            command = [sys.executable, "-m", "bench.training.measure", *case.arguments()]
            command += ["--threads", str(arguments.threads), "--batch", str(batch)]
            command += ["--steps", "1" if arguments.quick else "6"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
            found = json.loads(done.stdout)
            precision = case.precision + (" recomputed" if case.recompute else "")
            figures["/".join([str(case.length), case.stage, precision.replace(" ", "_")])] = found
            table.add_row(
                f"{case.length:,}", case.stage, precision, f"{found['step_ms']:.0f}",
                f"{found['cpu_ms']:.0f}", f"{found['tokens_per_s']:,.0f}", f"{found['peak_mib']:,.0f}",
            )  # fmt: skip
    console.print(table)
    write_report("training", arguments.quick, {"steps": figures})


if __name__ == "__main__":
    main()
