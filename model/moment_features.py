"""How the moment of a request fits when items came, and the whole history: hour of the day and of the week, time since the newest.

Shapes: N items, P periods.
"""

import numpy as np
import numpy.typing as npt

from state.item_statistics import DAY_MS, PERIODS_MS, PHASE_UNIT, SLOT_MS, Records, phases_at

NUM_MOMENT_FEATURES = 2 * len(PERIODS_MS) + 1
_LONGEST_MS = 28 * DAY_MS
"""Who was away for longer is away."""


def slot_of(time_ms: int) -> int:
    """Moments of one slot are told the same."""
    return time_ms // SLOT_MS


def moment_features(history: Records, items: Records, time_ms: int) -> npt.NDArray[np.float32]:
    """[N, 2 P + 1] at the beginning of the time's slot.

    Per period the mean cosine between the moment and the item's interactions on the circle of the period, with one more
    that lies nowhere; the same for the history; the logarithm of one and the days since its newest interaction.
    """
    now_ms = slot_of(time_ms) * SLOT_MS
    away_ms = np.clip(now_ms - history["last_time_ms"][0], 0, _LONGEST_MS)
    everything = [*_fits(history, now_ms)[0], np.log1p(away_ms / DAY_MS)]
    shared = np.broadcast_to(everything, (len(items), len(everything)))
    return np.concatenate([_fits(items, now_ms), shared], 1).astype(np.float32)


def _fits(records: Records, now_ms: int) -> npt.NDArray[np.float64]:
    """[N, P]."""
    cosines = records["phases"] * phases_at(np.array(now_ms)).astype(np.int64)
    sums = cosines.reshape(len(records), 2, -1).sum(1)
    return np.asarray(sums / PHASE_UNIT**2 / (records["count"][:, None] + 1.0))
