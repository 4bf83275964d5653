"""Recall by the cause of the target: what the synthetic stream is for."""

from typing import Any

import numpy as np
import numpy.typing as npt

from bench.quality.synthetic.stream_config import CAUSES
from bench.quality.synthetic.synthetic_task import SyntheticTask
from model.training.histories import Index

KS = (10, 20, 50)


def by_cause(
    task: SyntheticTask, cuts: Index, table: npt.NDArray[np.uint64]
) -> dict[str, dict[str, float]]:
    """{cause: {recall_at_k, fresh_recall_at_k, targets}}: "fresh" are targets that the user did not have before."""
    ids = task.histories.rows["item_id"]
    fresh = np.array([ids[cut] not in task.seen(cut) for cut in cuts.tolist()])
    hits = {k: (table[:, :k] == ids[cuts][:, None]).any(1) for k in KS}
    figures: dict[str, dict[str, Any]] = {}
    for number, cause in enumerate(CAUSES):
        of_cause = task.causes[cuts] == number
        if not of_cause.any():
            continue
        figures[cause] = {f"recall_at_{k}": _mean(hits[k][of_cause]) for k in KS}
        figures[cause] |= {f"fresh_recall_at_{k}": _mean(hits[k][of_cause & fresh]) for k in KS}
        figures[cause]["targets"] = int(of_cause.sum())
        figures[cause]["fresh"] = int((of_cause & fresh).sum())
    return figures


def _mean(values: npt.NDArray[np.bool_]) -> float:
    return round(float(values.mean()), 4) if len(values) else float("nan")
