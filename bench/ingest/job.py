"""What one engine process is told to do, and the line it stands at until it may begin."""

import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from stream.topics import TopicsConfig


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of one engine."""

    engine: str
    """A name in bench/ingest/engine.py."""
    bootstrap: str
    topics: TopicsConfig
    num_events: int
    """How many the topic holds, or will hold, for this process."""
    group: str
    """A new one for each run: nobody begins where another run ended."""
    directory: Path
    num_partitions: int
    """How many of the topic's partitions this process waits for before it is ready."""
    held: bool = False
    """Stop at each announcement until the parent gives the word."""
    hot_user: str = ""
    num_first: int = 0
    """Of `num_events`, those that are there at the start; the rest comes after the first word."""

    def encode(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def decode(cls, text: str) -> Self:
        """Inverse of encode."""
        job = cls(**json.loads(text))
        topics = TopicsConfig(**job.topics)  # type: ignore[arg-type]  # a dict until here
        return replace(job, directory=Path(job.directory), topics=topics)


def announce(job: Job, word: str) -> None:
    """Tell the parent how far this process is, and wait for its word. Blocks."""
    if job.held:
        sys.stdout.write(word + "\n")
        sys.stdout.flush()
        sys.stdin.readline()
