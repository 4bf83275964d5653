"""What the benches of training and tokenizers measure, and that a measurement runs."""

import json
import subprocess
import sys

import pytest

from bench.training.__main__ import LENGTHS, QUICK_LENGTHS, STAGES, cases_of


def test_training_is_measured_at_short_and_long_histories() -> None:
    assert LENGTHS == (1_000, 5_000, 20_000, 100_000)
    assert max(QUICK_LENGTHS) <= 5_000
    cases = cases_of(LENGTHS, STAGES)
    for length in LENGTHS:
        found = {(c.stage, c.precision, c.recompute) for c in cases if c.length == length}
        assert {
            (stage, precision, False) for stage in STAGES for precision in ("fp32", "bf16")
        } < found
        assert ("selection", "fp32", True) in found


@pytest.mark.parametrize(
    ("module", "arguments", "figure"),
    [
        ("bench.training.measure", "60 selection fp32 --recompute --batch 2 --steps 1", "step_ms"),
        ("bench.tokenizer.measure", "residual_kmeans 2000", "fit_s"),
    ],
)
def test_a_measurement_gives_figures(module: str, arguments: str, figure: str) -> None:
    command = [sys.executable, "-m", module, *arguments.split(), "--threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found = json.loads(done.stdout)
    assert found[figure] > 0
    assert found["peak_mib"] > 100
