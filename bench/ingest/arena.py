"""Where the engines meet: a broker, topics filled from logs, and engine processes with deadlines."""

import asyncio
import itertools
import json
import logging
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console

from bench.ingest.job import Job
from bench.ingest.records import Record, fill
from services.local_kafka import RunningKafka, start_kafka
from services.supervisor import die_with_parent
from stream.topics import TopicsConfig, ensure_topics

console = Console(stderr=True)
"""Progress."""
output = Console(width=max(140, console.width))
"""Tables for people."""

Outcome = dict[str, Any]
DEADLINE_S = 900.0


class Arena:
    """One broker on which everything runs, and a directory that goes away."""

    def __init__(self, kafka: RunningKafka, directory: Path) -> None:
        """Use `open_arena`."""
        self.kafka = kafka
        self.directory = directory
        self.numbers = itertools.count()

    @property
    def bootstrap(self) -> str:
        """The broker's address."""
        return self.kafka.bootstrap

    def topics(self, name: str) -> TopicsConfig:
        """New topics, empty."""
        topics = TopicsConfig(
            interactions=f"{name}-events",
            dead_letters=f"{name}-dead",
            compression_jobs=f"{name}-jobs",
            trending=f"{name}-trending",
            trending_counts=f"{name}-counts",
        )
        asyncio.run(ensure_topics(self.bootstrap, topics))
        return topics

    def filled(self, name: str, records: Sequence[Record]) -> TopicsConfig:
        """New topics with `records`."""
        topics = self.topics(name)
        self.fill(topics, records)
        return topics

    def fill(self, topics: TopicsConfig, records: Sequence[Record]) -> None:
        """Put `records` into topics that are there."""
        with console.status(f"{topics.interactions}: producing {len(records):,} events"):
            asyncio.run(fill(self.bootstrap, topics, records))

    def job(self, engine: str, topics: TopicsConfig, num_events: int, **fields: Any) -> Job:
        """A job with a group and a directory of its own, for all partitions unless `fields` say otherwise."""
        name = f"{engine}-{next(self.numbers)}"
        return Job(
            **{
                "engine": engine,
                "bootstrap": self.bootstrap,
                "topics": topics,
                "num_events": num_events,
                "group": name,
                "directory": self.directory / name,
                "num_partitions": topics.num_partitions,
                **fields,
            }
        )

    def run(self, engine: str, topics: TopicsConfig, num_events: int, **fields: Any) -> Outcome:
        """One engine over a filled topic."""
        with (
            console.status(f"{engine}: {num_events:,} events of {topics.interactions}"),
            EngineProcess(self.job(engine, topics, num_events, **fields)) as process,
        ):
            return {"events": num_events, **process.outcome()}


class EngineProcess:
    """A process that runs a job; killed when it takes longer than DEADLINE_S. Use as a context manager."""

    def __init__(self, job: Job) -> None:
        """Start it."""
        self.job = job
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self.process = subprocess.Popen(  # noqa: S603  our own command
            die_with_parent([sys.executable, "-m", "bench.ingest.engine", job.encode()]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._deadline = threading.Timer(DEADLINE_S, self.process.kill)
        self._deadline.start()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Kill what still runs."""
        self._deadline.cancel()
        self.process.kill()
        self.process.communicate()
        self._log.close()

    def wait_for(self, word: str) -> None:
        """Return when the process announces `word`. Raises SystemExit when it ends before that."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == word:
                return
        raise self._failed()

    def release(self) -> None:
        """Let it go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def outcome(self) -> Outcome:
        """What it printed at its end. Raises SystemExit when it failed."""
        output, _ = self.process.communicate()
        if self.process.returncode:
            raise self._failed()
        outcome: Outcome = json.loads(output.splitlines()[-1])
        return outcome

    def _failed(self) -> SystemExit:
        self.process.kill()
        self.process.wait()
        self._log.seek(0)
        text = self._log.read().decode(errors="replace")
        return SystemExit(
            f"{self.job.engine} failed with {self.process.returncode}:\n{text[-3_000:]}"
        )


@contextmanager
def open_arena() -> Iterator[Arena]:
    """A broker of its own; it and everything written are gone afterwards."""
    logging.getLogger("aiokafka").setLevel(
        logging.CRITICAL
    )  # what fails raises; retries are no news
    with tempfile.TemporaryDirectory(prefix="gemstream-bench-") as name:
        directory = Path(name)
        with console.status("starting Kafka"):
            kafka = start_kafka(directory / "kafka")
        try:
            yield Arena(kafka, directory)
        finally:
            kafka.stop()
