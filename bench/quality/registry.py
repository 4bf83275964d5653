"""The data sets and rankers by name; each is imported when it is asked for."""

import pkgutil
from collections.abc import Callable, Iterable

from bench.quality.task import Ranker, Task

TASKS = {
    "complete_journey": "bench.quality.complete_journey:load_task",
    "ml1m": "bench.quality.sequences:load_ml1m",
    "beauty": "bench.quality.sequences:load_beauty",
    "sports": "bench.quality.sequences:load_sports",
    "toys": "bench.quality.sequences:load_toys",
}
RANKERS = {
    "popularity": "bench.quality.counts:popularity",
    "own_counts_500": "bench.quality.counts:own_counts_500",
    "best_counts": "bench.quality.counts:best_counts",
    "gemstream": "bench.quality.gemstream_ranker:Gemstream",
}


def load_task(name: str) -> Task:
    """A data set. Raises DataSetUnusable when its files are missing or others."""
    load: Callable[[], Task] = pkgutil.resolve_name(TASKS[name])
    return load()


def make_ranker(name: str) -> Ranker:
    """A ranker that has learned nothing yet."""
    make: Callable[[], Ranker] = pkgutil.resolve_name(RANKERS[name])
    return make()


def checked_names(given: Iterable[str], known: Iterable[str], what: str) -> list[str]:
    """The names given. Raises ValueError naming what is not known."""
    given, known = list(given), list(known)
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ValueError(f"no {what} {', '.join(unknown)}; there are {', '.join(known)}")
    return given
