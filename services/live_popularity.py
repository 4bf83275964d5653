"""How popular items are now, for a bundle's network: the weights of what trends, where they fade as in its training."""

import asyncio
import logging
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from services.trending import Trending

log = logging.getLogger(__name__)

_REFRESH_S = 60.0
"""Weights fade over hours; with every change, what was kept of users' candidates is made again."""

_LOOK_AGAIN_S = 2.0

SetPopularity = Callable[[npt.NDArray[np.uint64], npt.NDArray[np.float64], float], None]
"""Item ids, their weights, and the weight of all items."""


class LivePopularity:
    """Tells a network again and again. Where nothing is heard, or it fades otherwise, that of the training's end counts."""

    def __init__(
        self, trending: Trending, half_life_s: float, set_popularity: SetPopularity
    ) -> None:
        """`half_life_s` as the network was trained with."""
        self._trending, self._half_life_ms = trending, round(half_life_s * 1_000)
        self._set_popularity = set_popularity

    def refresh(self) -> bool:
        """Tell what is known now; whether that is anything."""
        items = self._trending.popularity(self._half_life_ms)
        self._set_popularity(items.item_ids, items.weights, items.total_weight)
        return len(items.item_ids) > 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            known = False
            try:
                known = await asyncio.to_thread(self.refresh)
            except Exception:  # what was told before stands
                log.exception("popularity was not refreshed, will try again")
            await asyncio.sleep(_REFRESH_S if known else _LOOK_AGAIN_S)
