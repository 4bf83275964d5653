"""How well places are ranked for validation baskets: what neural rankers stop by."""

from collections.abc import Iterable

import numpy as np

from bench.quality.task import Task
from model.training.histories import Index

_DISCOUNTS = 1 / np.log2(np.arange(2, 12))


def validation_sample(task: Task, most: int) -> Index:
    """The same at every seed, in order of history length."""
    cuts = task.validation_cuts
    if len(cuts) > most:
        cuts = np.random.default_rng(0).choice(cuts, most, replace=False)
    return task.histories.by_length(cuts)


def mean_ndcg(rankings: Iterable[Index], baskets: Iterable[Index]) -> float:
    """NDCG@10, mean over baskets."""
    values = []
    for ranking, basket in zip(rankings, baskets, strict=True):
        hits = np.isin(ranking[:10], basket)
        ideal = _DISCOUNTS[: min(10, len(basket))].sum()
        values.append(float((hits * _DISCOUNTS[: len(hits)]).sum() / ideal))
    return float(np.mean(values))
