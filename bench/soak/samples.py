"""One sample of the node a second, and what they say together."""

import csv
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Sample:
    """The node at one moment."""

    second: float
    rss_mib: float
    open_files: int
    threads: int
    cpu_s: float
    """Processor seconds since it started."""
    written_mib: float
    """Sent to the disk since it started."""
    lag_events: int
    lag_s: float
    """How long the oldest event that is not applied has been in the log."""
    sent: int


def write_csv(samples: list[Sample], path: Path) -> None:
    """One line a sample."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Sample)])
        writer.writeheader()
        writer.writerows(asdict(sample) for sample in samples)


def rss_slope(samples: list[Sample]) -> float:
    """MiB a minute by which memory grows over the second half, by least squares."""
    half = samples[len(samples) // 2 :]
    minutes = [sample.second / 60 for sample in half]
    return float(np.polyfit(minutes, [sample.rss_mib for sample in half], 1)[0])


def newest_growth(samples: list[Sample]) -> float:
    """MiB by which the greatest memory of the last quarter lies above that of the quarter before."""
    quarter = len(samples) // 4
    before = max(sample.rss_mib for sample in samples[-2 * quarter : -quarter])
    return max(sample.rss_mib for sample in samples[-quarter:]) - before
