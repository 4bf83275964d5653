"""`make bench NAME=backfill [QUICK=1]`: the same receipts through `gemstream store backfill`, and through Kafka."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd

from bench.ingest.arena import console, open_arena
from bench.ingest.records import encode
from bench.report import write_report
from examples.complete_journey.dataset import prepare_dataset
from services.settings import Settings, load_settings
from services.wiring.stores import backfill_repository, database_opener, store_directory
from state.backfill_intake import BackfillIntake
from state.event_log import read_event_log
from state.user_store import UserStore

NUM_EVENTS, QUICK_EVENTS = 1_000_000, 150_000
NUM_FILES = 8


def main() -> None:
    """Measure both ways, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer events")
    parser.add_argument("--num-cpus", type=int, default=os.cpu_count())
    given = parser.parse_args()
    num_events = QUICK_EVENTS if given.quick else NUM_EVENTS
    with tempfile.TemporaryDirectory(prefix="gemstream-bench-") as name:
        directory = Path(name)
        config = _prepare(directory, num_events)
        made = _backfill(directory / "histories", config, given.num_cpus)
        intake_s = _take(load_settings(config, {}))
        kafka = _through_kafka(directory / "log.parquet")
    through_kafka_s = kafka["producing_s"] + kafka["seconds"]
    backfill_s = made["seconds"] + intake_s
    figures = {
        "events": num_events,
        "load_average": round(os.getloadavg()[0], 1),
        "num_cpus": given.num_cpus,
        "backfill_s": round(made["seconds"], 2),
        "of_which_starting_ray_s": made["starting_seconds"],
        "intake_s": round(intake_s, 2),
        "bytes_per_interaction": round(made["bytes"] / made["interactions"], 1),
        "kafka_produce_s": round(kafka["producing_s"], 2),
        "kafka_ingest_s": round(kafka["seconds"], 2),
        "times_as_fast_as_kafka": round(through_kafka_s / backfill_s, 2),
        "times_without_start": round(through_kafka_s / (backfill_s - made["starting_seconds"]), 2),
    }
    write_report("backfill", given.quick, figures)


def _prepare(directory: Path, num_events: int) -> Path:
    """A directory of histories, the same as one log, and a configuration; returns the latter."""
    dataset = prepare_dataset(directory / "dataset")
    receipts = pd.concat([pd.read_parquet(path) for path in (dataset.history, dataset.live)])
    receipts = receipts.sort_values("event_time_ms", kind="stable")[:num_events]
    receipts["event_id"] = [str(number) for number in range(len(receipts))]
    receipts.to_parquet(directory / "log.parquet")
    (directory / "histories").mkdir()
    step = -(-num_events // NUM_FILES)
    for number in range(NUM_FILES):
        part = receipts[number * step : (number + 1) * step]
        part.to_parquet(directory / "histories" / f"{number}.parquet")
    (directory / "place").mkdir()
    config = directory / "gemstream.toml"
    config.write_text('[backfills]\nuri = "place"\n')
    return config


def _backfill(histories: Path, config: Path, num_cpus: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "services.cli", "store", "backfill", str(histories)]
    options = ["--config", str(config), "--no-summaries", "--num-cpus", str(num_cpus), "--json"]
    done = subprocess.run([*command, *options], stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603  our own command
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def _take(settings: Settings) -> float:
    """Seconds until a new node has everything."""
    directory, open_database = store_directory(settings), database_opener(settings)
    repository, topics = backfill_repository(settings), settings.topics
    intake = BackfillIntake(
        repository, directory, settings.history, topics.num_partitions, open_database
    )
    started_at_s = time.monotonic()
    for partition in range(topics.num_partitions):
        database = open_database(directory.path(partition))
        store = UserStore(database, settings.history, partition)
        assert intake.take_new(store)
        store.close()
    return time.monotonic() - started_at_s


def _through_kafka(path: Path) -> dict[str, Any]:
    """Producing the log, and a state node's ingest of the whole topic."""
    log = read_event_log(path)
    with open_arena() as arena:
        topics = arena.topics("journey")
        records = encode(log, topics.num_partitions)
        started_at_s = time.monotonic()
        arena.fill(topics, records)
        producing_s = time.monotonic() - started_at_s
        console.print(f"produced in {producing_s:.1f} s")
        outcome = arena.run("gemstream", topics, len(log.rows))
    return {**outcome, "producing_s": producing_s}


if __name__ == "__main__":
    main()
