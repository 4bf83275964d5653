"""How much an item counts among those of its basket: as finding it raises NDCG@10, not as a share of the basket.

One over the ideal DCG of the basket, whose best ten places hold it. Against one over its size this gives small baskets, which
are noise, less weight, and large ones more: beyond ten items, each counts the same.
"""

import numpy as np
import numpy.typing as npt

_PLACES = 10
_IDEAL = np.cumsum(1 / np.log2(np.arange(2, _PLACES + 2)))
"""DCG of a basket of one to ten items, all in front."""


def item_gains(basket_sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Weight of one item in baskets of these sizes, scaled to one over the size at ten."""
    ideal = _IDEAL[np.clip(basket_sizes, 1, _PLACES) - 1]
    return np.asarray(_IDEAL[-1] / (_PLACES * ideal))
