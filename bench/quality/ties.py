"""Best items by score; what ties comes in a random order that seed and cut decide."""

import numpy as np
import numpy.typing as npt

from model.training.histories import Index


def best_places(scores: npt.NDArray[np.floating], k: int, seed: int, cut: int) -> Index:
    """Places of the k highest scores, best first; -inf: never. Fewer where not enough are above it.

    The same for one seed and cut, whatever else is ranked in the run.
    """
    random = np.random.default_rng((seed, cut))
    num_kept = min(k, int((scores > -np.inf).sum()))
    if not num_kept:
        return np.empty(0, np.int64)
    worst = np.partition(scores, len(scores) - num_kept)[len(scores) - num_kept]
    above, tied = np.flatnonzero(scores > worst), np.flatnonzero(scores == worst)
    drawn = random.choice(tied, num_kept - len(above), replace=False)
    order = np.lexsort((random.random(len(above)), -scores[above]))
    return np.concatenate([above[order], drawn])
