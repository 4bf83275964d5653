"""Recall and NDCG of rankings: per cut, and of targets by how far back their item was."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.quality.targets import Targets, places_of
from bench.quality.task import NUM_RANKED, Task
from model.training.histories import Index

RECALL_AT = (10, 20, 50)
METRICS = ("recall_at_10", "recall_at_20", "recall_at_50", "ndcg_at_10", "new_recall_at_50")
_DISCOUNTS = 1 / np.log2(np.arange(2, 12))
Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """Of one ranker's lists."""

    per_cut: dict[str, Values]
    """By metric, one value per cut; new_recall_at_50 is nan where nothing of the basket is new."""
    ranks: Index
    """Per target, its place in the list, from 0; NUM_RANKED or more: not in it."""


def score(task: Task, targets: Targets, table: npt.NDArray[np.uint64]) -> Scores:
    """`table`: item ids per cut, best first, as `as_table` gives them."""
    ranks = _ranks(task, targets, table)
    num_cuts = len(targets.lengths)
    sizes = np.bincount(targets.row, minlength=num_cuts)
    per_cut = {}
    for k in RECALL_AT:
        per_cut[f"recall_at_{k}"] = np.bincount(targets.row, ranks < k, num_cuts) / sizes
    gains = np.append(_DISCOUNTS, 0)[ranks.clip(max=len(_DISCOUNTS))]
    ideal = np.cumsum(_DISCOUNTS)[sizes.clip(1, len(_DISCOUNTS)) - 1]
    per_cut["ndcg_at_10"] = np.bincount(targets.row, gains, num_cuts) / ideal
    new = targets.row[targets.new]
    num_new = np.bincount(new, minlength=num_cuts)
    found = np.bincount(new, ranks[targets.new] < RECALL_AT[-1], num_cuts)
    per_cut["new_recall_at_50"] = np.where(num_new, found / num_new.clip(1), np.nan)
    return Scores(per_cut, ranks)


def _ranks(task: Task, targets: Targets, table: npt.NDArray[np.uint64]) -> Index:
    num_items = len(task.items.item_ids)
    places, known = places_of(task, table.ravel())
    keys = np.repeat(np.arange(len(table)), table.shape[1]) * num_items + places
    ranks = np.tile(np.arange(table.shape[1]), len(table))[known]
    order = np.argsort(keys[known])
    keys, ranks = keys[known][order], ranks[order]
    wanted = targets.row * num_items + targets.item
    at = np.searchsorted(keys, wanted).clip(max=max(len(keys) - 1, 0))
    if not len(keys):
        return np.full(len(wanted), NUM_RANKED)
    return np.where(keys[at] == wanted, ranks[at], NUM_RANKED)


def by_length(task: Task, targets: Targets, recall: Values) -> dict[str, float]:
    """Mean of a metric per bucket of history length; empty buckets are left out."""
    bounds = (0, *task.length_bounds)
    names = [f"{low}-{high}" for low, high in pairwise(bounds)]
    bucket = np.searchsorted(task.length_bounds, targets.lengths, side="right")
    return _per_bucket([*names, f"{bounds[-1]}+"], bucket, lambda rows: recall[rows].mean())


def by_reach(task: Task, targets: Targets, ranks: Index, k: int) -> dict[str, dict[str, float]]:
    """Share of the targets among the first k, pooled over cuts, and their number, by where their item last was."""
    segments = task.segments
    bounds = (segments.recent_len, segments.mid_term_len)
    bucket = np.where(targets.new, 3, np.searchsorted(bounds, targets.reach))
    names = ["recent", "mid_term", "lifecycle", "new"]
    return {
        "recall": _per_bucket(names, bucket, lambda these: (ranks[these] < k).mean()),
        "targets": _per_bucket(names, bucket, lambda these: these.sum()),
    }


def by_stratum(
    task: Task, cuts: Index, targets: Targets, ranks: Index
) -> dict[str, dict[str, float]]:
    """Per stratum, shares of its targets among the first k, pooled over cuts, of the new ones, too, and their numbers."""
    figures = {}
    for name, mask in task.strata.items():
        chosen = mask[cuts[targets.row]]
        if not chosen.any():
            continue
        found = {"targets": float(chosen.sum()), "new_targets": float((chosen & targets.new).sum())}
        for k in RECALL_AT:
            found[f"recall_at_{k}"] = float((ranks[chosen] < k).mean())
            new = ranks[chosen & targets.new]
            found[f"new_recall_at_{k}"] = float((new < k).mean()) if len(new) else 0.0
        figures[name] = found
    return figures


def _per_bucket(
    names: list[str], bucket: Index, value: Callable[[npt.NDArray[np.bool_]], Any]
) -> dict[str, float]:
    masks = {name: bucket == number for number, name in enumerate(names)}
    return {name: round(float(value(mask)), 4) for name, mask in masks.items() if mask.any()}
