"""Rivals take turns, A B A B, so that a busy moment of the machine meets all of them."""

import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

from rich.console import Console
from rich.progress import track

Milliseconds = list[float]
Name = TypeVar("Name", bound=Hashable)

console = Console(stderr=True)


def alternate(
    runs: Mapping[Name, Callable[[], object]], rounds: int, title: str, budget_s: float = math.inf
) -> dict[Name, Milliseconds]:
    """Wall times of every run, `rounds` of each after one that does not count; at least one, whatever the budget."""
    times: dict[Name, Milliseconds] = {name: [] for name in runs}
    end = time.monotonic() + budget_s
    for number in track(range(-1, rounds), title, console=console, transient=True):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            took_ms = 1e3 * (time.perf_counter() - start)
            if number >= 0:
                times[name].append(took_ms)
        if number >= 0 and time.monotonic() > end:
            break
    return times


def prefixed(prefix: str, names: Iterable[str]) -> list[str]:
    """The names that begin so."""
    return [name for name in names if name.startswith(prefix)]
