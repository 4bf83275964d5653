"""Recall and NDCG of rankings, mean over baskets."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from bench.quality.task import Task
from model.training.histories import Index

LENGTHS = ((0, 200), (200, 500), (500, 1_000), (1_000, 1_000_000))
_DISCOUNTS = 1 / np.log2(np.arange(2, 12))


class Metrics:
    """Collects one ranker's figures."""

    def __init__(self, task: Task) -> None:
        """Of rankings for this task."""
        self._task = task
        self._per_basket: dict[str, list[float]] = {}
        self._lengths: list[int] = []

    def add_all(self, cuts: Index, rankings: Iterable[np.ndarray]) -> None:
        """Item ids, best first, for the basket at each cut."""
        for cut, ranking in zip(cuts, rankings, strict=True):
            self._add(int(cut), ranking)

    def _add(self, cut: int, ranking: np.ndarray) -> None:
        basket = self._task.targets(cut)
        new = np.setdiff1d(basket, self._task.seen(cut))
        for k in (10, 20, 50):
            self._note(f"recall_at_{k}", float(np.isin(basket, ranking[:k]).mean()))
        hits = np.isin(ranking[:10], basket)
        ideal = _DISCOUNTS[: min(10, len(basket))].sum()
        self._note("ndcg_at_10", float((hits * _DISCOUNTS[: len(hits)]).sum() / ideal))
        self._note(
            "new_recall_at_50", float(np.isin(new, ranking[:50]).mean()) if len(new) else np.nan
        )
        self._lengths.append(cut - int(self._task.histories.user_start[cut]))

    def _note(self, name: str, value: float) -> None:
        self._per_basket.setdefault(name, []).append(value)

    def figures(self) -> dict[str, Any]:
        """Means; new_recall_at_50 over baskets with anything new; recall_at_20 by history length."""
        figures: dict[str, Any] = {
            name: round(float(np.nanmean(values)), 4) for name, values in self._per_basket.items()
        }
        recall, lengths = np.array(self._per_basket["recall_at_20"]), np.array(self._lengths)
        figures["recall_at_20_by_length"] = {
            f"{low}-{high}" if high < LENGTHS[-1][1] else f"{low}+": round(
                float(recall[(lengths >= low) & (lengths < high)].mean()), 4
            )
            for low, high in LENGTHS
            if ((lengths >= low) & (lengths < high)).any()
        }
        figures["baskets"] = len(lengths)
        return figures
