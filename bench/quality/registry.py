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
    "synthetic": "bench.quality.synthetic.synthetic_task:load_task",
    "synthetic_many": "bench.quality.synthetic.synthetic_task:load_many",
    "synthetic_without_lifecycle": "bench.quality.synthetic.synthetic_task:load_without_lifecycle",
    "synthetic_without_session": "bench.quality.synthetic.synthetic_task:load_without_session",
    "synthetic_shuffled": "bench.quality.synthetic.synthetic_task:load_shuffled",
    "kuairand": "bench.quality.kuairand:load_task",
}
RANKERS = {
    "popularity": "bench.quality.counts:popularity",
    "popularity_4_weeks": "bench.quality.counts:popularity_4_weeks",
    "own_counts_50": "bench.quality.counts:own_counts_50",
    "own_counts_200": "bench.quality.counts:own_counts_200",
    "own_counts_500": "bench.quality.counts:own_counts_500",
    "own_counts": "bench.quality.counts:own_counts",
    "recent_counts": "bench.quality.counts:recent_counts",
    "best_counts": "bench.quality.counts:TunedCounts",
    "tifuknn": "bench.quality.tifuknn:TifuKnn",
    "boosted": "bench.quality.boosted:Boosted",
    "sasrec": "bench.quality.sasrec:Sasrec",
    "tiger": "bench.quality.tiger:Tiger",
    "oracle": "bench.quality.synthetic.rankers:OracleRanker",
    "gemstream_synthetic": "bench.quality.synthetic.rankers:SyntheticGemstream",
    "gemstream_synthetic_without_lifecycle": "bench.quality.synthetic.rankers:WithoutLifecycle",
    "gemstream": "bench.quality.gemstream_ranker:Gemstream",
    "gemstream_next": "bench.quality.next_item_ranker:NextItemGemstream",
}
FAMILIES = {
    "ablation:VARIANT": "bench.quality.ablations:make_ablated",
    "bundle:PATH": "bench.quality.gemstream_ranker:TrainedGemstream",
}
"""Of rankers that take what stands behind the colon."""


def load_task(name: str) -> Task:
    """A data set. Raises DataSetUnusable when its files are missing or others."""
    load: Callable[[], Task] = pkgutil.resolve_name(TASKS[name])
    return load()


def make_ranker(name: str) -> Ranker:
    """A ranker that has learned nothing yet. Raises ValueError for names that are not known."""
    family, _, variant = name.partition(":")
    path = _families().get(family) if variant else RANKERS.get(name)
    if path is None:
        raise ValueError(f"no ranker {name}; there are {', '.join([*RANKERS, *FAMILIES])}")
    make: Callable[..., Ranker] = pkgutil.resolve_name(path)
    return make(variant) if variant else make()


def module_of(name: str) -> str:
    """Where a ranker is made."""
    family, _, variant = name.partition(":")
    path = _families()[family] if variant else RANKERS[name]
    return path.partition(":")[0]


def _families() -> dict[str, str]:
    return {name.partition(":")[0]: path for name, path in FAMILIES.items()}


def checked_names(given: Iterable[str], known: Iterable[str], what: str) -> list[str]:
    """The names given. Raises ValueError naming what is not known."""
    given, known = list(given), list(known)
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ValueError(f"no {what} {', '.join(unknown)}; there are {', '.join(known)}")
    return given
