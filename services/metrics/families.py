"""Metric families by name, meaning and labels; what is not known is left out."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from stream.histogram import Histogram


def labels_of(*labels: object) -> tuple[str, ...]:
    """Values of labels, as text."""
    return tuple(map(str, labels))


Values = Mapping[tuple[str, ...], float | None]
"""By the values of the labels; None = not known, left out."""


def metric_counter(name: str, meaning: str, value: float) -> Metric:
    """One count that only grows."""
    return metric_counters(name, meaning, {(): value}, [])


def metric_counters(name: str, meaning: str, values: Values, labels: list[str]) -> Metric:
    """Counts by labels."""
    family = CounterMetricFamily(f"gemstream_{name}", meaning, labels=labels)
    for key, value in _known(values):
        family.add_metric(key, value)
    return family


def metric_gauge(name: str, meaning: str, values: Values, labels: Iterable[str] = ()) -> Metric:
    """Values that rise and fall, by labels."""
    family = GaugeMetricFamily(f"gemstream_{name}", meaning, labels=list(labels))
    for key, value in _known(values):
        family.add_metric(key, value)
    return family


def _known(values: Values) -> Iterator[tuple[tuple[str, ...], float]]:
    return ((key, float(value)) for key, value in values.items() if value is not None)


def metric_histogram(
    name: str,
    meaning: str,
    histograms: Mapping[tuple[str, ...], Histogram],
    labels: Iterable[str] = (),
) -> Metric:
    """Distributions, by labels."""
    family = HistogramMetricFamily(f"gemstream_{name}", meaning, labels=list(labels))
    for key, histogram in histograms.items():
        buckets, total = [], 0
        for bound, count in zip([*histogram.bounds, float("inf")], histogram.counts(), strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), total))
        family.add_metric(key, buckets, histogram.sum)
    return family
