"""A ranker's lists for many cuts as one array."""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from bench.quality.task import NUM_RANKED, ItemIds, Task
from model.training.histories import Index

NONE = np.uint64(0)
"""Where a list was shorter; no item has this id."""


def as_table(task: Task, cuts: Index, lists: Iterable[ItemIds]) -> npt.NDArray[np.uint64]:
    """[cuts, NUM_RANKED]: what remains of each list when items that cannot be targets are taken out; NONE behind its end."""
    table = np.full((len(cuts), NUM_RANKED), NONE)
    for row, ranking in zip(table, _possible(task, cuts, lists), strict=True):
        row[: len(ranking)] = ranking[:NUM_RANKED]
    return table


def _possible(task: Task, cuts: Index, lists: Iterable[ItemIds]) -> Iterator[ItemIds]:
    for cut, ranking in zip(cuts.tolist(), lists, strict=True):
        if len(np.unique(ranking[:NUM_RANKED])) < len(ranking[:NUM_RANKED]):
            raise ValueError(f"cut {cut}: an item is in the list twice")
        yield ranking if task.repeats else ranking[~np.isin(ranking, task.seen(cut))]
