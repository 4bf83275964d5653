"""Values that /metrics exposes, read back."""

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, ...], float]
"""Values by name and the values of the labels, in the labels' order."""


def parse(text: str) -> Samples:
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(samples: Samples, name: str) -> float | None:
    values = [value for key, value in samples.items() if key[0] == f"gemstream_{name}"]
    return sum(values) if values else None
