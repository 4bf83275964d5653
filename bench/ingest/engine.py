"""One engine in a process of its own: does the job in its argument, prints what it took as JSON on its last line."""

import json
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from bench.ingest.job import Job
from bench.ingest.stopwatch import used_bytes

ENGINES = {
    "bare": "bench.ingest.rivals:bare",
    "faust": "bench.ingest.rivals:faust_table",
    "quix": "bench.ingest.rivals:quix",
    "gemstream": "bench.ingest.node:gemstream",
    "trending": "bench.trending.engine:count",
    "gemstream-shares": "bench.ingest.shares:gemstream",
    "gemstream-delays": "bench.ingest.delays:gemstream",
    "gemstream-reads": "bench.ingest.reads:gemstream",
}
"""By name, and imported one by one: an engine's memory is its own."""


def main() -> None:
    """Run one engine."""
    job = Job.decode(sys.argv[1])
    module, _, name = ENGINES[job.engine].partition(":")
    run: Callable[[Job], dict[str, Any]] = getattr(import_module(module), name)
    outcome = run(job)
    sys.stdout.write(json.dumps({**outcome, **used_bytes(job.directory)}) + "\n")


if __name__ == "__main__":
    main()
