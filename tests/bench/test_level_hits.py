"""Hit rates by level against plain loops."""

import numpy as np

from bench.quality.level_hits import LevelHits
from tests.bench.quality_tasks import random_rows, time_split_task


def test_levels_are_hit_as_plain_loops_count() -> None:
    task = time_split_task(random_rows(3), 20, 30)
    random = np.random.default_rng(0)
    sids = random.integers(0, 3, (len(task.items.item_ids), 3))
    catalogue = task.items.with_sids(sids)
    of_item = {
        item: catalogue.sid_of_item(place) for place, item in enumerate(catalogue.item_ids.tolist())
    }
    hits, found, total = LevelHits(task, catalogue), [0, 0, 0], 0
    for cut in task.cuts.tolist():
        ranking = random.choice(task.items.item_ids, 4, replace=False)
        hits.add(cut, ranking)
        listed = [of_item[item] for item in ranking.tolist()]
        for target in task.targets(cut).tolist():
            total += 1
            for level in range(3):
                prefix = of_item[target][: level + 1]
                found[level] += any(sid[: level + 1] == prefix for sid in listed)
    assert total > 50
    assert hits.rates() == [round(one / total, 4) for one in found]
