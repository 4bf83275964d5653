"""What every bench ends with: one JSON document, printed last and kept under bench/results/."""

import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def write_report(bench: str, quick: bool, figures: dict[str, Any]) -> None:
    """Print the document as the last line and write bench/results/NAME.json."""
    document = {
        "bench": bench,
        "command": _command(bench, quick),
        "commit": _commit(),
        "machine": f"{_processor()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "quick": quick,
        "figures": figures,
    }
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(document)
    (RESULTS / f"{bench}.json").write_text(text + "\n")
    sys.stdout.write(text + "\n")


def _command(bench: str, quick: bool) -> str:
    others = shlex.join(argument for argument in sys.argv[1:] if argument != "--quick")
    quickly = " QUICK=1" if quick else ""
    return f"make bench NAME={bench}{quickly}" + (f' ARGS="{others}"' if others else "")


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],  # noqa: S607  git from the path, as everywhere
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
