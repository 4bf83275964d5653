"""Rivals take turns, A B A B, so that a busy moment of the machine meets all of them."""

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

import torch
from rich.console import Console
from rich.progress import track

from bench.ingest.quantiles import quantiles_ms

Name = TypeVar("Name", bound=Hashable)
Clock = Callable[[], float]

console = Console(stderr=True)


@dataclass(frozen=True)
class Times:
    """Of one run, again and again."""

    wall_ms: list[float] = field(default_factory=list)
    undisturbed_ms: list[float] = field(default_factory=list)

    @property
    def undisturbed_p50_ms(self) -> float:
        """The median that ratios are made of."""
        return statistics.median(self.undisturbed_ms)

    def figures(self, per: int = 1) -> dict[str, float]:
        """Quantiles of wall time, and the undisturbed median; of one of `per` things that a run did."""
        undisturbed_ms = round(self.undisturbed_p50_ms / per, 3)
        wall_ms = [spent / per for spent in self.wall_ms]
        return {**quantiles_ms(wall_ms), "undisturbed_p50_ms": undisturbed_ms}


def undisturbed_clock() -> Clock:
    """Seconds of processor where one thread works: what neighbours take is out, what they do to caches is in.

    Wall time where several threads work: they spend processor time on waiting for each other.
    """
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def alternate(
    runs: Mapping[Name, Callable[[], object]],
    rounds: int,
    title: str,
    budget_s: float,
    clocks: Mapping[Name, Clock] = MappingProxyType({}),
) -> dict[Name, Times]:
    """Times of every run, `rounds` of each after one that does not count; at least one, whatever the budget.

    `clocks` of undisturbed time for runs that work in other processes, too.
    """
    times = {name: Times() for name in runs}
    usual, end = undisturbed_clock(), time.monotonic() + budget_s
    for number in track(range(-1, rounds), title, console=console, transient=True):
        for name, run in runs.items():
            clock = clocks.get(name, usual)
            wall_start, start = time.perf_counter(), clock()
            run()
            undisturbed_s, wall_s = clock() - start, time.perf_counter() - wall_start
            if number >= 0:
                times[name].wall_ms.append(1e3 * wall_s)
                times[name].undisturbed_ms.append(1e3 * undisturbed_s)
        if number >= 0 and time.monotonic() > end:
            break
    return times
