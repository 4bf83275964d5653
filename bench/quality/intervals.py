"""Means, 95 % intervals and paired differences by a bootstrap over users and seeds."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.quality.metrics import METRICS, Scores
from bench.quality.targets import Targets

NUM_DRAWS = 1_000
_AT_ONCE = 100
Draws = dict[str, npt.NDArray[np.float64]]


@dataclass(frozen=True)
class Estimate:
    """Of one ranker: means over seeds, and what they were with users and seeds drawn again."""

    means: dict[str, float]
    per_seed: dict[str, list[float]]
    draws: Draws

    def interval(self, metric: str) -> list[float]:
        """Within which 95 % of the draws lie."""
        return _percentiles(self.draws[metric])

    def difference(self, other: "Estimate", metric: str) -> list[float]:
        """This one's mean less the other's, and the interval of that; the same users were drawn for both."""
        mean = self.means[metric] - other.means[metric]
        return [round(mean, 4), *_percentiles(self.draws[metric] - other.draws[metric])]


def estimate(targets: Targets, seeds: list[Scores]) -> Estimate:
    """From the scores of one ranker under each seed. All cuts of a user are drawn together."""
    _, user = np.unique(targets.users, return_inverse=True)
    per_seed, draws = dict[str, list[float]](), Draws()
    for metric in METRICS:
        values = np.stack([scores.per_cut[metric] for scores in seeds])
        per_seed[metric] = [round(float(mean), 4) for mean in _means(values)]
        draws[metric] = _drawn_means(values, user)
    means = {metric: float(np.mean(found)) for metric, found in per_seed.items()}
    return Estimate(means, per_seed, draws)


def _means(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Per seed; nan where no cut has a value."""
    known = ~np.isnan(values)
    sums, counts = np.where(known, values, 0).sum(1), known.sum(1)
    return np.where(counts, sums / counts.clip(1), np.nan)


def _drawn_means(
    values: npt.NDArray[np.float64], user: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """[NUM_DRAWS]: of `values` [seeds, cuts]."""
    random = np.random.default_rng(0)
    num_seeds, num_users = len(values), int(user.max()) + 1
    known = ~np.isnan(values[0])
    sums = np.stack([np.bincount(user[known], row[known], num_users) for row in values], 1)
    counts = np.bincount(user[known], minlength=num_users)
    parts = []
    for _ in range(NUM_DRAWS // _AT_ONCE):
        weights = random.poisson(1, (_AT_ONCE, num_users)).astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            parts.append(weights @ sums / (weights @ counts)[:, None])
    means = np.concatenate(parts)
    drawn = np.random.default_rng(1).integers(num_seeds, size=(NUM_DRAWS, num_seeds))
    return np.asarray(np.take_along_axis(means, drawn, 1).mean(1))


def _percentiles(draws: npt.NDArray[np.float64]) -> list[float]:
    if np.isnan(draws).all():
        return [float("nan")] * 2
    return [round(float(bound), 4) for bound in np.nanpercentile(draws, (2.5, 97.5))]
