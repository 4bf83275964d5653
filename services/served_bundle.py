"""One bundle as an inference node serves it: a network with its queue, its caches and its view of the catalogue."""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from services.generation import Generator
from services.live_popularity import LivePopularity

if TYPE_CHECKING:  # the state node imports this package, too, and does without PyTorch
    from services.catalogue_follower import CatalogueFollower


@dataclass(eq=False)
class ServedBundle:
    """Lives until nobody uses it any more. `run` must be running."""

    path: Path
    generator: Generator
    catalogue: "CatalogueFollower"
    popularity: LivePopularity
    follows: bool
    """False without Kafka: the catalogue stays the bundle's own, and popularity that of the training's end."""
    engine_name: str
    sources: Mapping[str, int]
    """Items of answers, by where they come from."""
    loaded_at_ms: int = field(default_factory=lambda: round(time.time() * 1_000))
    running: asyncio.Task[None] | None = None
    """Of `run`."""
    _in_use: int = 0
    _unused: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def version(self) -> str:
        """Of the bundle."""
        return self.generator.bundle_version

    async def run(self) -> None:
        """Answer and follow catalogue and popularity, until cancelled. Raises TopicMismatch."""
        runs = [self.generator.run]
        if self.follows:
            runs += [self.catalogue.run, self.popularity.run]
        tasks = [asyncio.create_task(run()) for run in runs]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def wait_until_caught_up(self) -> None:
        """Return when it has all that the catalogue's topic held, or that takes too long."""
        if self.follows:
            await self.catalogue.wait_until_caught_up()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """A request is under way."""
        self._in_use += 1
        self._unused.clear()
        try:
            yield
        finally:
            self._in_use -= 1
            if not self._in_use:
                self._unused.set()

    async def stop(self) -> None:
        """End `running` when no request is under way; none may come any more."""
        if self._in_use:
            await self._unused.wait()
        if self.running is not None:
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)
