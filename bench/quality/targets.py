"""What was to be found: every target of a list of cuts, and how far back in the history its item last was."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.quality.task import Task
from model.training.histories import Index

NEW = 0
"""The reach of a target that the user never had."""


@dataclass(frozen=True)
class Targets:
    """Distinct ranked items of each cut's basket, as one flat list."""

    row: Index
    """Per target, the place of its cut."""
    item: Index
    """Per target, the place of its item in the item table."""
    reach: Index
    """Per target, how many interactions before the cut its item was last: 1 is the one just before, NEW is never."""
    users: Index
    """Per cut, its user."""
    lengths: Index
    """Per cut, interactions before it."""

    @property
    def new(self) -> npt.NDArray[np.bool_]:
        """Per target, whether the user never had it."""
        return np.asarray(self.reach == NEW)


def find_targets(task: Task, cuts: Index) -> Targets:
    """Of these cuts."""
    histories, num_items = task.histories, len(task.items.item_ids)
    places, known = places_of(task, histories.rows["item_id"])
    row, positions = _basket_rows(task, cuts)
    kept = known[positions] & histories.are_targets[positions]
    pairs = np.unique(row[kept] * num_items + places[positions[kept]])
    row, item = pairs // num_items, pairs % num_items
    users = histories.users[cuts]
    had = np.where(known, histories.users * num_items + places, -1)
    reach = _reach(had, users[row] * num_items + item, cuts[row])
    return Targets(row, item, reach, users, task.lengths(cuts))


def places_of(task: Task, item_ids: npt.NDArray[np.uint64]) -> tuple[Index, npt.NDArray[np.bool_]]:
    """Places of items in the item table, and whether they are there at all."""
    known_ids = task.items.item_ids
    places = np.searchsorted(known_ids, item_ids).clip(max=len(known_ids) - 1)
    return places, known_ids[places] == item_ids


def _basket_rows(task: Task, cuts: Index) -> tuple[Index, Index]:
    """Positions of all interactions of the cuts' baskets, each with its cut's place."""
    sizes = task.histories.basket_end[cuts] - cuts
    row = np.repeat(np.arange(len(cuts)), sizes)
    offsets = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return row, cuts[row] + offsets


def _reach(keys: Index, wanted: Index, cuts: Index) -> Index:
    """Distance from each cut to the last position before it that has the wanted key; NEW where there is none."""
    stride = len(keys) + 1
    ordered = np.sort(keys * stride + np.arange(len(keys)))
    last = ordered[np.searchsorted(ordered, wanted * stride + cuts) - 1]
    return np.where(last // stride == wanted, cuts - last % stride, NEW)
