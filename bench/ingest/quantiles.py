"""Quantiles of what was measured many times."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def quantiles_ms(values: Sequence[float] | npt.NDArray[np.float64]) -> dict[str, float]:
    """Median, 99th percentile, greatest and number of milliseconds; empty where nothing was measured."""
    if not len(values):
        return {}
    p50, p99 = np.quantile(values, [0.5, 0.99])
    return {
        "p50_ms": round(float(p50), 3),
        "p99_ms": round(float(p99), 3),
        "max_ms": round(float(np.max(values)), 3),
        "count": len(values),
    }
