"""Statistics of a data set under its protocol."""

from typing import Any

import numpy as np

from bench.quality.targets import find_targets
from bench.quality.task import Task


def describe(task: Task) -> dict[str, Any]:
    """Users, items, interactions, lengths, share of repeats, and where the set is from."""
    histories = task.histories
    starts = np.unique(histories.user_start)
    lengths = np.diff(np.append(starts, len(histories.rows)))
    targets = find_targets(task, task.cuts)
    return {
        "source": task.provenance.source,
        "licence": task.provenance.licence,
        "protocol": task.provenance.protocol,
        "users": len(starts),
        "items": len(np.unique(histories.rows["item_id"])),
        "ranked_items": len(task.items.item_ids),
        "interactions": len(histories.rows),
        "training_interactions": len(task.training.rows),
        "length_min_median_mean_max": [
            int(lengths.min()),
            float(np.median(lengths)),
            round(float(lengths.mean()), 1),
            int(lengths.max()),
        ],
        "test_cuts": len(task.cuts),
        "test_users": len(np.unique(targets.users)),
        "validation_cuts": len(task.validation_cuts),
        "targets": len(targets.row),
        "share_of_targets_that_repeat": round(float((~targets.new).mean()), 4),
        "untrained_items": int((task.items.counts == 0).sum()),
    }
